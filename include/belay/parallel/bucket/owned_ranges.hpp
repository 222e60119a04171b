// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranges that this rank updates, by where its buckets are bound.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/parallel/bucket/family.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/bucket/member.hpp"
#include "belay/parallel/bucket/reduced.hpp"

namespace belay::inline BELAY_ABI {

/// In the order of memory and so of buckets.
template <class T, class Group>
[[nodiscard]] std::vector<owned_range<T>> owned_ranges(const bucket_layout& layout,
                                                       const std::vector<bucket_family<Group>>& families,
                                                       const std::vector<bucket_member<T>>& members) {
  std::vector<owned_range<T>> out;
  for (std::size_t b = 0; b < layout.buckets().size(); ++b) {
    const auto& bucket = layout.buckets()[b];
    const auto rank = static_cast<std::size_t>(layout_rank(families[bucket.family].group));
    const norm_share share =
        bucket.counts.empty() && rank != 0 ? norm_share::counted_elsewhere : norm_share::counted_here;
    layout.each_owned(bucket, rank, [&](const parameter_range& range) {
      const trainable_parameter<T>& p = members[range.parameter].parameter();
      out.push_back({range.parameter, range.offset, range.count, b, p.value() + range.offset,
                     p.gradient() + range.offset, p.decay(), share});
    });
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
