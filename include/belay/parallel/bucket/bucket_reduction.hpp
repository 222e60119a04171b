// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How one bucket is reduced when what it is made of has been computed. In checked builds the communication stream first
// takes the checksums of what was computed, and reduces a copy, so that a late contribution is seen.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <cstddef>

#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// What the stream of a checked build runs for bucket `number` of `Buckets`, which outlive it.
template <class Buckets>
struct bucket_reduction {
  Buckets* owner;
  std::size_t number;
  where at;

  template <class Group>
  [[nodiscard]] pending start(const Group& group, const start_order& how) const {
    if constexpr (Buckets::sealed && can_start_composite<Group, bucket_reduction>) {
      return group.start_composite(operation::all_reduce, *this, how);
    } else {
      seal();
      const auto& b = owner->layout_.buckets()[number];
      return b.counts.empty() ? group.start_all_reduce(owner->reduction_of(b), sum, how)
                              : group.start_reduce_scatter_v(owner->reduction_of(b), b.counts, sum, how);
    }
  }
  template <class Calls>
  void operator()(const Calls& group) const {
    seal();
    const auto& b = owner->layout_.buckets()[number];
    if (b.counts.empty())
      group.all_reduce(owner->reduction_of(b), sum, at);
    else
      group.reduce_scatter_v(owner->reduction_of(b), b.counts, sum, at);
  }

 private:
  void seal() const noexcept {
    if constexpr (Buckets::sealed) {
      const auto& b = owner->layout_.buckets()[number];
      for (std::size_t parameter : b.members) owner->checksums_.seal(parameter, owner->gradient_of(parameter));
      std::copy_n(owner->gradients_.data() + b.first, b.count, owner->reduction_of(b).data());
    }
  }
};

}  // namespace belay::inline BELAY_ABI
