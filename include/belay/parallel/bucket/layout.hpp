// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where every parameter lies in the memory of its buckets, which rank owns which range of it, and in what order
// buckets are launched. It is computed from sizes alone and equal on all ranks that share a bucket; plan, buckets and
// optimizer use the same one. Memory is in the order of the backward, so that a bucket is one contiguous range. Shards
// are cut only between units of a parameter, which are chunks or 2^k of them: the sum over a unit has one owner, and
// the same bits however the parameter is sharded. A rank owns one range of each bucket, in rank order, and over all
// buckets of a replica group at most the mean and one unit.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/reduce.hpp"

namespace belay::inline BELAY_ABI {

/// The shards of one replica group. Every rank computes them alone, from sizes and the number of ranks (1 or more).
class even_shards {
 public:
  explicit even_shards(std::size_t ranks) : owned_(ranks) {}

  /// Begins a bucket of `elements`. Its units follow by `give`, in the order of memory, with as many elements
  /// together.
  void begin(std::size_t elements) noexcept {
    total_ += elements;
    level_ = total_ / owned_.size();
    std::size_t filled = 0;
    std::size_t below = owned_.size();
    for (std::size_t last = below + 1; below != last;) {  // few rounds: ranks lie within two units of each other
      last = below;
      below = 0;
      filled = elements;
      for (std::size_t owned : owned_) {
        if (owned > level_) continue;
        filled += owned;
        ++below;
      }
      level_ = filled / below;
    }
    remainder_ = filled % below;
    given_ = 0;
    rank_ = 0;
    end_ = room();
  }

  /// Gives the next `units`, of `elements` each (1 or more), to ranks, and calls `visit(rank, units)` for each that
  /// gets some.
  template <class Visit>
  void give(std::size_t units, std::size_t elements, Visit&& visit) {
    while (units > 0) {
      const std::size_t middle = given_ + elements / 2;
      if (middle >= end_) {
        ++rank_;
        end_ += room();
        continue;
      }
      const std::size_t fitting = (end_ - middle - 1) / elements + 1;
      const std::size_t taken = fitting < units ? fitting : units;
      visit(rank_, taken);
      owned_[rank_] += taken * elements;
      given_ += taken * elements;
      units -= taken;
    }
  }

 private:
  // Elements that the current rank lacks to the level. Those of the bucket that the level leaves go to the first ranks.
  [[nodiscard]] std::size_t room() noexcept {
    const std::size_t owned = owned_[rank_];
    if (owned > level_) return 0;
    const std::size_t one = remainder_ > 0 ? 1 : 0;
    remainder_ -= one;
    return level_ - owned + one;
  }

  std::vector<std::size_t> owned_;  // elements of each rank so far
  std::size_t total_ = 0;
  std::size_t level_ = 0;
  std::size_t remainder_ = 0;
  std::size_t given_ = 0;  // elements of the bucket so far
  std::size_t rank_ = 0;   // that gets the next unit
  std::size_t end_ = 0;    // of its room, counted as `given_`
};

/// A chunk: elements of a parameter that are summed in lanes before they are added to others.
inline constexpr std::size_t parameter_chunk = kernel::sum_chunk;

/// Number of chunks of `elements` elements.
[[nodiscard]] constexpr std::size_t chunks_of(std::size_t elements) noexcept {
  return elements / parameter_chunk + (elements % parameter_chunk != 0 ? 1 : 0);
}

/// The elements that one rank owns together: 2^k chunks of a parameter, counted from its local start. k follows from
/// the model alone (`norm_table::unit`).
class ownership_unit {
 public:
  static constexpr unsigned largest_k = 51;  // more elements than any memory holds

  constexpr ownership_unit() = default;
  /// 2^k chunks; k is `largest_k` at most.
  explicit constexpr ownership_unit(unsigned k) noexcept : k_(k < largest_k ? k : largest_k) {}

  [[nodiscard]] constexpr unsigned k() const noexcept { return k_; }
  [[nodiscard]] constexpr std::size_t elements() const noexcept { return parameter_chunk << k_; }
  /// Number of units of `elements` elements; the last may be shorter.
  [[nodiscard]] constexpr std::size_t count(std::size_t elements) const noexcept {
    return elements / this->elements() + (elements % this->elements() != 0 ? 1 : 0);
  }

  friend constexpr bool operator==(ownership_unit, ownership_unit) = default;

 private:
  unsigned k_ = 0;
};

/// The state that the ranks which replicate a parameter divide among themselves, as in ZeRO: each stage also divides
/// what those before it do.
enum class zero_stage : std::uint8_t { none, optimizer_state, gradients, parameters };

/// When gradients are reduced: into the owners' shards in every micro-batch, so that a rank keeps its shard alone; or
/// once a step, for which every rank keeps whole gradients.
enum class reduce_when : std::uint8_t { each_micro_batch, last };

/// For a parameter whose place in memory the layout decides.
inline constexpr std::size_t placed_by_layout = ~std::size_t{0};

/// The size of one parameter, the replica group (ranks that replicate it) it belongs to, a hash of its name and of what
/// else is equal on these ranks, where it begins in memory that is borrowed (all entries of a layout say so, or none),
/// the number of the layer that uses it: a bucket of divided gradients or parameters is of one layer; the identity of
/// the entry before it whose memory it continues, or 0; and whether it has a bucket of its own, which is divided as if
/// there were no other: alike on ranks that share nothing else.
struct bucket_entry {
  std::size_t elements = 0;
  std::size_t replica_group = 0;
  std::uint64_t identity = 0;
  std::size_t offset = placed_by_layout;
  std::size_t layer = 0;
  std::uint64_t follows = 0;
  bool is_alone = false;

  /// Whether it is placed behind `other`, the entry before it.
  [[nodiscard]] constexpr bool continues(const bucket_entry& other) const noexcept {
    return follows != 0 && follows == other.identity && offset == placed_by_layout &&
           replica_group == other.replica_group && layer == other.layer && !is_alone && !other.is_alone;
  }
};

/// A replica group as the layout needs it: the number of its ranks, what they divide, when they reduce gradients, and
/// the tiers of their shards.
struct replica_group_shape {
  std::size_t ranks = 1;
  zero_stage stage = zero_stage::none;
  reduce_when reduces = reduce_when::each_micro_batch;
  tier values = tier::device;  // where shards of them lie
  tier gradients = tier::device;

  /// One rank has a shard too where it lies in a lower tier: all of it.
  [[nodiscard]] constexpr bool divides_gradients() const noexcept {
    return (ranks > 1 || gradients != tier::device) && stage >= zero_stage::gradients &&
           reduces == reduce_when::each_micro_batch;
  }
  [[nodiscard]] constexpr bool divides_values() const noexcept {
    return (ranks > 1 || values != tier::device) && stage >= zero_stage::parameters;
  }
};

/// A list of `Element`s, or of types that convert to it: members of buckets, replica groups.
template <class List, class Element>
concept list_of = requires(const List& list, std::size_t i) {
  { list.size() } -> std::convertible_to<std::size_t>;
  { list[i] } -> std::convertible_to<Element>;
};

/// Elements `offset` to `offset + count - 1` of the local part of parameter number `parameter`.
struct parameter_range {
  std::size_t parameter = 0;
  std::size_t offset = 0;
  std::size_t count = 0;

  friend constexpr bool operator==(const parameter_range&, const parameter_range&) = default;
};

/// The layout of one rank's buckets. Offsets and counts are in elements; parameters are numbered in model order.
class bucket_layout {
 public:
  struct bucket {
    std::size_t replica_group = 0;
    std::size_t first = 0;             // element offset in the memory
    std::size_t count = 0;             // with padding between parameters
    std::vector<std::size_t> members;  // parameter numbers, in the order of memory
    std::vector<std::size_t>
        counts;  // elements per rank of the replica group; only for sharded replica groups, else empty
    std::vector<std::size_t> before;  // and of the ranks before each
    std::size_t reduced_at = 0;       // element offset in the gradients' memory of where it is reduced
    bool is_alone = false;            // one parameter's, which is divided apart
  };

  bucket_layout() = default;

  /// Divides `entries` into buckets of about `bucket_bytes` of gradients, whose elements have `element_bytes`, each of
  /// one replica group, cut between `unit`s. A larger parameter gets a bucket of its own. Every gradient begins at a
  /// multiple of 64 bytes. Entries that follow each other are in one bucket and in their own order, without a gap where
  /// they end at such multiples. Throws `size_error` where all of them are more than any memory holds. In borrowed
  /// memory a bucket holds neighbours only, which begin where they do.
  template <list_of<bucket_entry> Entries, list_of<replica_group_shape> ReplicaGroups>
  bucket_layout(const Entries& entries, const ReplicaGroups& replica_groups, std::size_t element_bytes,
                std::size_t bucket_bytes, ownership_unit unit = {}, where at = where::current())
      : replica_groups_(replica_groups.size()),
        sizes_(entries.size()),
        identities_(entries.size()),
        offsets_(entries.size()),
        align_(element_bytes < 64 ? 64 / element_bytes : 1),
        unit_(unit) {
    for (std::size_t f = 0; f < replica_groups.size(); ++f) {
      replica_groups_[f] = replica_groups[f];
      if (replica_groups_[f].ranks == 0) throw usage_error("replica group " + std::to_string(f) + " has no ranks", at);
    }
    std::vector<std::size_t> open(replica_groups.size());  // 1 + the bucket that a replica group is filling, or 0
    std::vector<std::size_t> layer_of(replica_groups.size());
    checked_size all;
    for (std::size_t behind = entries.size(), first = 0; behind > 0; behind = first) {
      first = first_of_range(entries, behind);
      std::size_t size = 0;  // of the entries from `first` on that follow each other
      for (std::size_t i = behind; i-- > first;) {
        const bucket_entry one = entries[i];
        if (one.replica_group >= replica_groups.size())
          throw usage_error("parameter number " + std::to_string(i) + " names replica group " +
                                std::to_string(one.replica_group) + " of " + std::to_string(replica_groups.size()),
                            at);
        sizes_[i] = one.elements;
        identities_[i] = one.identity;
        all += checked_size(one.elements).rounded_up(align_) * element_bytes;
        static_cast<void>(all.value([&] { return too_much(i, one.elements, element_bytes); }, at));
        if (i + 1 == entries.size()) borrowed_ = one.offset != placed_by_layout;
        size += padded(sizes_[i]);
      }
      const bucket_entry entry = entries[first];
      const std::size_t replica_group = entry.replica_group;
      const std::size_t end = borrowed_ ? entry.offset + size : 0;
      const bool of_one_layer =
          replica_groups_[replica_group].divides_gradients() || replica_groups_[replica_group].divides_values();
      if (open[replica_group] == 0 || entry.is_alone ||
          (buckets_[open[replica_group] - 1].count + size) * element_bytes > bucket_bytes ||
          buckets_[open[replica_group] - 1].first != end || (of_one_layer && layer_of[replica_group] != entry.layer)) {
        buckets_.push_back({});
        open[replica_group] = buckets_.size();
      }
      bucket& b = buckets_[open[replica_group] - 1];
      b.replica_group = replica_group;
      layer_of[replica_group] = entry.layer;
      for (std::size_t i = first; i < behind; ++i) b.members.push_back(i);
      b.count += size;
      if (borrowed_) offsets_[first] = b.first = entry.offset;
      b.is_alone = entry.is_alone;
      if (b.is_alone || b.count * element_bytes >= bucket_bytes) open[replica_group] = 0;
    }
    // A bucket is launched when the backward has reached its earliest parameter, in one order for all replica groups.
    // An insertion sort: few buckets are out of order.
    const auto earliest = [](const bucket& b) { return *std::min_element(b.members.begin(), b.members.end()); };
    for (std::size_t i = 1; i < buckets_.size(); ++i)
      for (std::size_t j = i; j > 0 && earliest(buckets_[j]) > earliest(buckets_[j - 1]); --j)
        std::swap(buckets_[j], buckets_[j - 1]);
    std::vector<even_shards> shards;
    for (const replica_group_shape& replica_group : replica_groups_) shards.emplace_back(replica_group.ranks);
    for (bucket& b : buckets_) {
      even_shards apart(replica_groups_[b.replica_group].ranks);
      place(b, b.is_alone ? apart : shards[b.replica_group]);
    }
    place_reductions();
  }

  /// Elements of the memory that holds all values; of borrowed memory those up to its last parameter's end.
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
  /// Elements of the memory that holds all gradients: as many as values. A checked build reduces in a second buffer, to
  /// find gradients that change afterwards: there every bucket of several ranks needs twice its elements.
  [[nodiscard]] std::size_t gradient_elements() const noexcept { return gradient_elements_; }
  [[nodiscard]] std::size_t parameters() const noexcept { return sizes_.size(); }
  /// The unit of a parameter's elements that has one owner.
  [[nodiscard]] ownership_unit unit() const noexcept { return unit_; }
  [[nodiscard]] std::size_t offset(std::size_t parameter) const noexcept { return offsets_[parameter]; }
  [[nodiscard]] std::size_t size(std::size_t parameter) const noexcept { return sizes_[parameter]; }
  /// In the order of launch.
  [[nodiscard]] const std::vector<bucket>& buckets() const noexcept { return buckets_; }
  [[nodiscard]] const std::vector<replica_group_shape>& replica_groups() const noexcept { return replica_groups_; }

  [[nodiscard]] const replica_group_shape& replica_group_of(const bucket& b) const noexcept {
    return replica_groups_[b.replica_group];
  }

  /// Calls `visit(parameter_range)` for what rank `rank` of the bucket's replica group owns, in the order of memory.
  template <class Visit>
  void each_owned(const bucket& b, std::size_t rank, Visit&& visit) const {
    std::size_t from = b.first;
    std::size_t to = b.first + b.count;
    if (!b.counts.empty()) {
      from += b.before[rank];
      to = from + b.counts[rank];
    }
    for (std::size_t parameter : b.members) {
      const std::size_t begin = offsets_[parameter];
      const std::size_t end = begin + sizes_[parameter];
      const std::size_t first = from > begin ? from : begin;
      const std::size_t last = to < end ? to : end;
      if (first < last) visit(parameter_range{parameter, first - begin, last - first});
    }
  }

  /// Elements whose optimizer state is on rank `rank_in_replica_group[f]` of each replica group f, without padding.
  [[nodiscard]] std::size_t owned_elements(std::span<const std::size_t> rank_in_replica_group) const;

  /// A hash of the buckets of one replica group: their parameters, counted within the replica group, with identities,
  /// sizes, order and division. It is equal on ranks whose layouts agree.
  [[nodiscard]] std::uint64_t fingerprint(std::size_t replica_group) const;

 private:
  [[nodiscard]] std::size_t padded(std::size_t elements) const noexcept {
    return borrowed_ ? elements : (elements + align_ - 1) / align_ * align_;
  }

  // The first of the entries before `behind` that follow each other.
  template <list_of<bucket_entry> Entries>
  [[nodiscard]] static std::size_t first_of_range(const Entries& entries, std::size_t behind) {
    std::size_t first = behind - 1;
    while (first > 0 && bucket_entry(entries[first]).continues(entries[first - 1])) --first;
    return first;
  }

  [[nodiscard]] static std::string too_much(std::size_t parameter, std::size_t elements, std::size_t element_bytes);

  void place(bucket& b, even_shards& shards);

  // In place; in a checked build behind all gradients, which are kept.
  void place_reductions() noexcept;

  std::vector<replica_group_shape> replica_groups_;
  std::vector<std::size_t> sizes_;
  std::vector<std::uint64_t> identities_;
  std::vector<std::size_t> offsets_;
  std::vector<bucket> buckets_;
  std::size_t elements_ = 0;
  std::size_t gradient_elements_ = 0;
  std::size_t align_ = 1;
  bool borrowed_ = false;
  ownership_unit unit_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/bucket/layout.ipp"  // IWYU pragma: export
#endif
