// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the buckets of one rank lie in its memory: as a whole, or of divided values and gradients its own share.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/parallel/bucket/layout.hpp"

namespace belay::inline BELAY_ABI {

/// Offsets and counts are in elements.
class bucket_places {
 public:
  struct place {
    std::size_t values = 0;     // where the bucket begins in the memory of values,
    std::size_t gradients = 0;  // and in that of gradients
    std::size_t before = 0;     // elements of the bucket before the rank's own share
    std::size_t own = 0;        // elements of that
  };

  bucket_places() = default;
  /// Those of rank `rank_in_family[f]` of each family f.
  bucket_places(const bucket_layout& layout, std::span<const std::size_t> rank_in_family) {
    for (const bucket_layout::bucket& b : layout.buckets()) {
      const family_shape& family = layout.family_of(b);
      place one{0, 0, 0, b.count};
      if (!b.counts.empty()) {
        const std::size_t rank = rank_in_family[b.family];
        for (std::size_t r = 0; r < rank; ++r) one.before += b.counts[r];
        one.own = b.counts[rank];
      }
      one.values = values_;
      one.gradients = gradients_;
      values_ += family.divides_values() ? one.own : b.count;
      gradients_ += family.divides_gradients() ? one.own : b.count;
      divided_ = divided_ || family.divides_values() || family.divides_gradients();
      all_.push_back(one);
    }
    if (divided_) return;
    for (std::size_t b = 0; b < all_.size(); ++b) all_[b].values = all_[b].gradients = layout.buckets()[b].first;
    values_ = gradients_ = layout.elements();  // borrowed memory may have gaps
  }

  [[nodiscard]] const place& operator[](std::size_t bucket) const noexcept { return all_[bucket]; }
  /// Elements of the memory of values, and of that of gradients without what checked builds reduce in.
  [[nodiscard]] std::size_t value_elements() const noexcept { return values_; }
  [[nodiscard]] std::size_t gradient_elements() const noexcept { return gradients_; }
  /// Whether this rank keeps a share of some bucket only.
  [[nodiscard]] bool divided() const noexcept { return divided_; }

 private:
  std::vector<place> all_;
  std::size_t values_ = 0;
  std::size_t gradients_ = 0;
  bool divided_ = false;
};

}  // namespace belay::inline BELAY_ABI
