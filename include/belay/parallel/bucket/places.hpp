// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the buckets of one rank lie in its memory: as a whole, or of divided values and gradients its own shard.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/layout.hpp"

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

}  // namespace belay::inline BELAY_ABI
