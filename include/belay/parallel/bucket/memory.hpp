// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory that buckets are bound to, and where the buckets of one rank lie in it: as a whole, or of divided values
// and gradients its own shard.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/file_shards.hpp"

namespace belay::inline BELAY_ABI {

/// Memory for values, or for gradients, in each tier that has some. Shards may lie below tier device; all else is
/// there.
template <class T>
class tiered_memory {
 public:
  tiered_memory() = default;
  tiered_memory(std::span<T> device) noexcept { (*this)[tier::device] = device; }

  [[nodiscard]] std::span<T>& operator[](tier in) noexcept { return in_[static_cast<std::size_t>(in)]; }
  [[nodiscard]] const std::span<T>& operator[](tier in) const noexcept { return in_[static_cast<std::size_t>(in)]; }
  /// Of all tiers.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t all = 0;
    for (const std::span<T>& each : in_) all += each.size();
    return all;
  }

 private:
  std::array<std::span<T>, tier_count> in_{};
};

/// Offsets and counts are in elements.
class bucket_places {
 public:
  struct bucket_location {
    std::size_t values = 0;     // where the bucket begins in the memory of values, in its tier,
    std::size_t gradients = 0;  // and in that of gradients
    std::size_t before = 0;     // elements of the bucket before the rank's own shard
    std::size_t own = 0;        // elements of that
    tier values_in = tier::device;
    tier gradients_in = tier::device;
  };

  bucket_places() = default;
  /// Those of rank `rank_in_replica_group[f]` of each replica group f.
  bucket_places(const bucket_layout& layout, std::span<const std::size_t> rank_in_replica_group) {
    for (const bucket_layout::bucket& b : layout.buckets()) {
      const replica_group_shape& replica_group = layout.replica_group_of(b);
      bucket_location one;
      one.own = b.count;
      if (!b.counts.empty()) {
        const std::size_t rank = rank_in_replica_group[b.replica_group];
        one.before = b.before[rank];
        one.own = b.counts[rank];
      }
      if (replica_group.divides_values()) one.values_in = replica_group.values;
      if (replica_group.divides_gradients()) one.gradients_in = replica_group.gradients;
      std::size_t& values = of(values_, one.values_in);
      std::size_t& gradients = of(gradients_, one.gradients_in);
      one.values = values;
      one.gradients = gradients;
      values += replica_group.divides_values() ? one.own : b.count;
      gradients += replica_group.divides_gradients() ? one.own : b.count;
      divided_ = divided_ || replica_group.divides_values() || replica_group.divides_gradients();
      all_.push_back(one);
    }
    if (divided_) return;
    for (std::size_t b = 0; b < all_.size(); ++b) all_[b].values = all_[b].gradients = layout.buckets()[b].first;
    of(values_, tier::device) = of(gradients_, tier::device) = layout.elements();  // borrowed memory may have gaps
  }

  [[nodiscard]] const bucket_location& operator[](std::size_t bucket) const noexcept { return all_[bucket]; }
  /// Elements of the memory of values in a tier, and of that of gradients without what checked builds reduce in.
  [[nodiscard]] std::size_t value_elements(tier in = tier::device) const noexcept { return of(values_, in); }
  [[nodiscard]] std::size_t gradient_elements(tier in = tier::device) const noexcept { return of(gradients_, in); }
  /// Whether this rank keeps a shard of some bucket only.
  [[nodiscard]] bool divided() const noexcept { return divided_; }

 private:
  using by_tier = std::array<std::size_t, tier_count>;
  [[nodiscard]] static std::size_t& of(by_tier& all, tier in) noexcept { return all[static_cast<std::size_t>(in)]; }
  [[nodiscard]] static std::size_t of(const by_tier& all, tier in) noexcept {
    return all[static_cast<std::size_t>(in)];
  }

  std::vector<bucket_location> all_;
  by_tier values_{}, gradients_{};
  bool divided_ = false;
};

/// Values of parameters of T and their gradients, each of `layout.elements()`, or what `places` says where they are
/// divided; what checked builds reduce in, which makes `layout.gradient_elements()` with the gradients; and where
/// gradients are rounded, sent and received, one bucket after the other.
template <class T>
struct bucket_memory {
  using gradient_type = compute_type_t<T>;

  tiered_memory<T> values = {};
  tiered_memory<gradient_type> gradients = {};
  std::span<gradient_type> reductions = {};
  std::span<T> wire = {};
  bucket_places places = {};
  file_shards* value_file = nullptr;  // of shards in tier file
  file_shards* gradient_file = nullptr;

  /// Throws usage_error where it is not what `layout` needs, with `wire_elements` for the wire.
  void expect(const bucket_layout& layout, std::size_t wire_elements, where at) const {
    const std::size_t all = gradients.size() + reductions.size(), needed = all_gradients(layout);
    if (values.size() != elements(&bucket_places::value_elements) || all != needed)
      throw usage_error(
          "the buckets need layout().elements() = " + std::to_string(elements(&bucket_places::value_elements)) +
              " values and layout().gradient_elements() = " + std::to_string(needed) + " gradients, got " +
              std::to_string(values.size()) + " and " + std::to_string(all),
          at);
    if (wire.size() != wire_elements)
      throw usage_error("the buckets need wire_elements() = " + std::to_string(wire_elements) +
                            " elements for the wire, got " + std::to_string(wire.size()),
                        at);
  }
  [[nodiscard]] bool is_bound_to(const bucket_layout& layout) const noexcept {
    return gradients.size() + reductions.size() == all_gradients(layout);
  }

  /// The values of a bucket that this rank keeps: all of them, or its shard.
  [[nodiscard]] std::span<T> values_of(const bucket_layout& layout, std::size_t bucket) const noexcept {
    const auto& b = layout.buckets()[bucket];
    const auto& place = places[bucket];
    return values[place.values_in].subspan(place.values,
                                           layout.replica_group_of(b).divides_values() ? place.own : b.count);
  }
  /// The gradients of a bucket that this rank keeps: all of them, or its shard.
  [[nodiscard]] std::span<gradient_type> gradients_of(const bucket_layout& layout, std::size_t bucket) const noexcept {
    const auto& b = layout.buckets()[bucket];
    const auto& place = places[bucket];
    return gradients[place.gradients_in].subspan(place.gradients,
                                                 layout.replica_group_of(b).divides_gradients() ? place.own : b.count);
  }
  /// Calls `visit(std::span<gradient_type>)` for a part of what is kept of a bucket's gradients: piece by piece, where
  /// it is in a file.
  template <class Visit>
  void change_gradients(std::size_t bucket, std::span<gradient_type> part, Visit&& visit) const {
    if (places[bucket].gradients_in != tier::file) return visit(part);
    gradient_file->change(part, [&](std::size_t, std::span<gradient_type> piece) { visit(piece); });
  }
  /// Where a bucket of whole gradients is reduced.
  [[nodiscard]] std::span<gradient_type> reduction_of(const bucket_layout& layout, std::size_t bucket) const noexcept {
    const auto& b = layout.buckets()[bucket];
    if (b.reduced_at == b.first) return gradients_of(layout, bucket);
    return reductions.subspan(b.reduced_at - layout.elements(), b.count);
  }

 private:
  // In all tiers.
  [[nodiscard]] std::size_t elements(std::size_t (bucket_places::*of)(tier) const noexcept) const noexcept {
    std::size_t all = 0;
    for (std::size_t t = 0; t < tier_count; ++t) all += (places.*of)(static_cast<tier>(t));
    return all;
  }
  [[nodiscard]] std::size_t all_gradients(const bucket_layout& layout) const noexcept {
    return elements(&bucket_places::gradient_elements) + layout.gradient_elements() - layout.elements();
  }
};

}  // namespace belay::inline BELAY_ABI
