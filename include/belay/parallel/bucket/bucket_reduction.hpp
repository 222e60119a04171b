// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How one bucket is reduced when what it is made of has been computed. In checked builds the communication stream first
// takes the checksums of what was computed, and reduces a copy, so that a late contribution is seen. Of parameters that
// are narrower than their gradients, gradients go over the wire in the parameters' type: every rank rounds its own
// once, the owner of a range adds all ranks' in their order, in the gradients' type, and keeps that.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/memory.hpp"
#include "belay/parallel/group_memory.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// How much of a bucket each rank sends to whom, where gradients are rounded for the wire. By bucket: what its ranks
/// add, which is what they own, or equal shards of a bucket that all keep whole.
class wire_counts {
 public:
  wire_counts() = default;
  template <class ReplicaGroups>
  wire_counts(const bucket_layout& layout, const ReplicaGroups& replica_groups) {
    for (const auto& bucket : layout.buckets()) {
      const std::size_t ranks = layout.replica_groups()[bucket.replica_group].ranks;
      std::vector<std::size_t> counts = bucket.counts;
      for (std::size_t r = 0; r < ranks && bucket.counts.empty(); ++r)
        counts.push_back(even_part(bucket.count, ranks, r).count);
      std::size_t largest = 0;
      for (const std::size_t count : counts) largest = greater_of(largest, count);
      if (ranks > 1) elements_ = greater_of(elements_, bucket.count + ranks * largest);
      received_.emplace_back(ranks,
                             counts[static_cast<std::size_t>(layout_rank(replica_groups[bucket.replica_group].group))]);
      sent_.push_back(std::move(counts));
    }
  }

  /// Elements for each rank of the bucket's replica group.
  [[nodiscard]] std::span<const std::size_t> sent(std::size_t bucket) const noexcept { return sent_[bucket]; }
  /// Elements that this rank gets from each.
  [[nodiscard]] std::span<const std::size_t> received(std::size_t bucket) const noexcept { return received_[bucket]; }
  /// Of the memory that the largest bucket needs on any rank: what it sends, and what it receives.
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }

 private:
  std::vector<std::vector<std::size_t>> sent_;
  std::vector<std::vector<std::size_t>> received_;
  std::size_t elements_ = 0;
};

/// A checksum of every gradient at its last contribution of a step, and the call after which it was taken. A backward
/// that adds to the gradient afterwards would not be part of the reduction; on one rank it would go unnoticed.
class gradient_checksums {
 public:
  static constexpr std::size_t no_micro_batch = largest_value<std::size_t>;

  explicit gradient_checksums(std::size_t parameters) : taken_(parameters) {}

  /// The last contribution to `parameter` was that of `micro_batch`, or `no_micro_batch`.
  void note(std::size_t parameter, std::size_t micro_batch, where at) noexcept {
    taken_[parameter] = {0, micro_batch, at, false};
  }
  /// Takes the checksum of a gradient that has all contributions, once after `note`. The gradient must not change from
  /// here on.
  template <class T>
  void seal(std::size_t parameter, std::span<T> gradient) noexcept {
    checksum& one = taken_[parameter];
    if (!std::exchange(one.sealed, true)) one.hash = hash_of(gradient);
  }
  /// Whether the gradient has changed since it was sealed.
  template <class T>
  [[nodiscard]] bool changed(std::size_t parameter, std::span<T> gradient) const noexcept {
    return taken_[parameter].hash != hash_of(gradient);
  }
  /// "micro-batch 3 at file:line", the last contribution to `parameter`.
  [[nodiscard]] std::string text(std::size_t parameter) const {
    const checksum& last = taken_[parameter];
    const bool none = last.micro_batch == no_micro_batch;
    return (none ? "a step of no micro-batches" : "micro-batch " + std::to_string(last.micro_batch)) + " at " +
           last.at.text();
  }
  /// A hash of all bits of a gradient.
  template <class T>
  [[nodiscard]] static std::uint64_t hash_of(std::span<T> gradient) noexcept {
    return content_hash().add_bytes(gradient.data(), gradient.size_bytes()).value();
  }

 private:
  struct checksum {
    std::uint64_t hash = 0;
    std::size_t micro_batch = 0;
    where at;
    bool sealed = false;
  };

  std::vector<checksum> taken_;
};

/// Whether gradients of parameters of T are rounded for the wire.
template <class T>
inline constexpr bool rounds_gradients = !std::is_same_v<T, compute_type_t<T>>;

/// The state that the reductions of a rank use beside the memory of its run: layout, checksums, and counts on the wire.
/// A reduction that is under way keeps it.
template <class T>
struct bucket_reductions {
  template <class Members, class ReplicaGroups, class... Arguments>
  bucket_reductions(const Members& members, const ReplicaGroups& replica_groups, const Arguments&... arguments)
      : layout(members, replica_groups, arguments...), checksums(members.size()) {
    if constexpr (rounds_gradients<T>) wire = wire_counts(layout, replica_groups);
  }

  /// The bytes that a rank gives its peers in the reduction of a bucket that is a composite: each part counts as the
  /// longest. Rounded gradients of a bucket that nobody owns a part of are added in equal shards, and those gathered.
  [[nodiscard]] std::size_t wire_bytes(std::size_t number) const noexcept {
    const auto& b = layout.buckets()[number];
    const std::span<const std::size_t> counts = rounds_gradients<T> ? wire.sent(number) : std::span(b.counts);
    const std::size_t longest = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    const std::size_t gathered = b.counts.empty() ? longest * sizeof(compute_type_t<T>) : 0;
    return greater_of(counts.size() * ((longest * sizeof(T) + 15) / 16 * 16), gathered);
  }

  /// The order of a bucket's reduction, which tells a rehearsal those bytes. A run does not read them, and its ranks do
  /// not count them over all ranks.
  template <class Group>
  [[nodiscard]] start_order told(const Group& group, std::size_t number, const start_order& how) const {
    return is_rehearsed(group) ? how.giving(wire_bytes(number)) : how;
  }

  bucket_layout layout;
  gradient_checksums checksums;
  wire_counts wire;
};

/// Reduces a bucket over the wire of the parameters' type: `computed` is rounded and sent, and what the ranks have sent
/// is added into this rank's part of `memory`, which has room for the bucket and may be `computed`. The wire holds what
/// this rank sends, then a part from every rank. Of a bucket that no rank owns a part of, equal shards are added, and
/// then gathered as they are. A rank that is alone sends nothing, and rounds nothing.
template <class T, class Calls>
void reduce_rounded(const Calls& group, const bucket_reductions<T>& with, std::size_t number,
                    const compute_type_t<T>* computed, std::span<T> wire, std::span<compute_type_t<T>> memory,
                    where at) {
  using gradient_type = compute_type_t<T>;
  const auto& b = with.layout.buckets()[number];
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::span<const std::size_t> counts = with.wire.sent(number);
  const std::span<const std::size_t> own = with.wire.received(number);
  if (own.size() == 1) {
    if (memory.data() != computed) each_among(group, b.count, kernel::copy<gradient_type>{computed, memory.data()});
    return;
  }
  const std::span<T> sent = wire.first(b.count);
  const std::span<T> received = wire.subspan(b.count, own.size() * own.front());
  each_among(group, b.count, kernel::copy<gradient_type, T>{computed, sent.data()});
  group.all_to_all_v(std::span<const T>(sent), counts, received, own, at);
  gradient_type* to = memory.data();
  for (std::size_t before = 0; before < rank; ++before) to += counts[before];
  const std::size_t count = own.front();
  each_among(group, count, kernel::copy<T, gradient_type>{received.data(), to});
  for (std::size_t from = 1; from < own.size(); ++from)
    each_among(group, count, kernel::axpy<gradient_type, T>{gradient_type(1), received.data() + from * count, to});
  if (b.counts.empty()) group.all_gather_v(memory, counts, at);
}

/// The reduction of bucket `number` in `memory`: that of the gradients, or in checked builds of a copy, where the host
/// addresses them. T is the parameters' type.
template <class T>
struct bucket_reduction {
  using gradient_type = compute_type_t<T>;

  bucket_reductions<T>* with;
  std::size_t number;
  std::span<gradient_type> gradients, memory;  // of the bucket
  std::span<T> wire;                           // one reduction uses it after the other
  where at;

  bucket_reduction(bucket_reductions<T>& kept, std::size_t bucket, const bucket_memory<T>& all, where started_at)
      : with(&kept),
        number(bucket),
        gradients(all.gradients_of(kept.layout, bucket)),
        memory(all.reduction_of(kept.layout, bucket)),
        wire(all.wire),
        at(started_at) {}

  template <class Group>
  [[nodiscard]] pending start(const Group& group, const start_order& how) const {
    const auto& b = with->layout.buckets()[number];
    if constexpr (rounds_gradients<T>) {
      static_assert(can_start_composite<Group, bucket_reduction>,
                    "gradients of bf16 parameters are rounded, sent and added as one started composite: take a "
                    "communicator with start_composite, as belay::host and belay::mpi have");
      return group.start_composite(operation::all_reduce, *this, with->told(group, number, how));
    } else if constexpr (works_on_device<Group>) {
      return b.counts.empty() ? group.start_all_reduce(gradients, sum, how)
                              : group.start_reduce_scatter_v(gradients, b.counts, sum, how);
    } else {
      if (checked(check_level::local) && !is_rehearsed(group)) {
        if constexpr (can_start_composite<Group, bucket_reduction>)
          if (!how.event.ready()) return group.start_composite(operation::all_reduce, *this, how);
        seal();
        copy();
      }
      return b.counts.empty() ? group.start_all_reduce(memory, sum, how)
                              : group.start_reduce_scatter_v(memory, b.counts, sum, how);
    }
  }
  template <class Calls>
  void operator()(const Calls& group) const {
    constexpr bool on_device = requires { group.each(std::size_t{}, kernel::fill<float>{}); };
    if constexpr (!on_device) seal();
    if constexpr (rounds_gradients<T>) {
      reduce_rounded(group, *with, number, gradients.data(), wire, on_device ? gradients : memory, at);
    } else {
      copy();
      const auto& b = with->layout.buckets()[number];
      if (b.counts.empty())
        group.all_reduce(memory, sum, at);
      else
        group.reduce_scatter_v(memory, b.counts, sum, at);
    }
  }

 private:
  void seal() const noexcept {
    if constexpr (checked(check_level::local)) {
      const auto& b = with->layout.buckets()[number];
      for (std::size_t p : b.members)
        with->checksums.seal(p, std::span<const gradient_type>(
                                    gradients.subspan(with->layout.offset(p) - b.first, with->layout.size(p))));
    }
  }
  void copy() const noexcept {
    if constexpr (checked(check_level::local)) std::copy_n(gradients.data(), gradients.size(), memory.data());
  }
};

/// The reduction of bucket `number`, which `computed` holds for some micro-batches, into this rank's `shard` of it: the
/// first of a step writes, others add. A shard in a lower tier is copied there afterwards.
template <class T>
struct shard_reduction {
  enum class into : std::uint8_t { written, added, left };  // left: it stays in what it was computed in
  using gradient_type = compute_type_t<T>;

  bucket_reductions<T>* with;
  std::size_t number;
  std::span<gradient_type> computed, shard;
  std::size_t before;  // elements of the bucket before the shard
  std::span<T> wire;
  into how;
  where at;

  /// One started composite, which the communicators of host and MPI have.
  template <class Group>
  static constexpr bool can_start = can_start_composite<Group, shard_reduction>;
  template <class Group>
    requires can_start<Group>
  [[nodiscard]] pending start(const Group& group, const start_order& order) const {
    return group.start_composite(operation::reduce_scatter_v, *this, with->told(group, number, order));
  }
  template <class Calls>
  void operator()(const Calls& group) const {
    if constexpr (rounds_gradients<T>)
      reduce_rounded(group, *with, number, computed.data(), wire, computed, at);
    else
      group.reduce_scatter_v(computed, with->layout.buckets()[number].counts, sum, at);
    const gradient_type* const own = computed.data() + before;
    if (how == into::left) return;
    if (how == into::written)
      each_among(group, shard.size(), kernel::copy<gradient_type, gradient_type>{own, shard.data()});
    else
      each_among(group, shard.size(), kernel::axpy<gradient_type, gradient_type>{gradient_type(1), own, shard.data()});
  }
};

}  // namespace belay::inline BELAY_ABI
