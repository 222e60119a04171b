// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Who sends how much of a bucket to whom, where gradients are rounded for the wire.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/placement.hpp"

namespace belay::inline BELAY_ABI {

/// By bucket: what its ranks add, which is what they own, or equal shares of a bucket that all keep whole.
class wire_counts {
 public:
  wire_counts() = default;
  template <class Families>
  wire_counts(const bucket_layout& layout, const Families& families) {
    for (const auto& bucket : layout.buckets()) {
      const std::size_t ranks = layout.families()[bucket.family].ranks;
      std::vector<std::size_t> counts = bucket.counts;
      for (std::size_t r = 0; r < ranks && bucket.counts.empty(); ++r)
        counts.push_back(even_part(bucket.count, ranks, r).count);
      if (ranks > 1) elements_ = greater_of(elements_, bucket.count + ranks * *std::ranges::max_element(counts));
      received_.emplace_back(ranks, counts[static_cast<std::size_t>(layout_rank(families[bucket.family].group))]);
      sent_.push_back(std::move(counts));
    }
  }

  /// Elements for each rank of the bucket's family.
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

}  // namespace belay::inline BELAY_ABI
