// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How one bucket is reduced when what it is made of has been computed. In checked builds the communication stream first
// takes the checksums of what was computed, and reduces a copy, so that a late contribution is seen.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/bucket/checksums.hpp"
#include "belay/parallel/bucket/layout.hpp"

namespace belay::inline BELAY_ABI {

/// What the reductions of a rank use beside the memory of its run. One that is under way keeps it.
struct bucket_reductions {
  template <class Members, class... Arguments>
  explicit bucket_reductions(const Members& members, const Arguments&... arguments)
      : layout(members, arguments...), checksums(members.size()) {}

  bucket_layout layout;
  gradient_checksums checksums;
};

/// The reduction of bucket `number` in `memory`: that of the gradients, or in checked builds of a copy.
template <class T>
struct bucket_reduction {
  bucket_reductions* with;
  std::size_t number;
  std::span<T> gradients, memory;
  where at;

  bucket_reduction(bucket_reductions& kept, std::size_t bucket, std::span<T> all, std::span<T> reduced,
                   where started_at)
      : with(&kept), number(bucket), gradients(all), memory(reduced), at(started_at) {}

  template <class Group>
  [[nodiscard]] pending start(const Group& group, const start_order& how) const {
    if constexpr (checked(check_level::local) && !moves_nothing<Group>) {
      if constexpr (can_start_composite<Group, bucket_reduction>)
        if (!how.event.ready()) return group.start_composite(operation::all_reduce, *this, how);
      seal();
    }
    const auto& b = with->layout.buckets()[number];
    return b.counts.empty() ? group.start_all_reduce(memory, sum, how)
                            : group.start_reduce_scatter_v(memory, b.counts, sum, how);
  }
  template <class Calls>
  void operator()(const Calls& group) const {
    seal();
    const auto& b = with->layout.buckets()[number];
    if (b.counts.empty())
      group.all_reduce(memory, sum, at);
    else
      group.reduce_scatter_v(memory, b.counts, sum, at);
  }

 private:
  void seal() const noexcept {
    if constexpr (checked(check_level::local)) {
      const auto& b = with->layout.buckets()[number];
      for (std::size_t p : b.members)
        with->checksums.seal(p, std::span<const T>(gradients.subspan(with->layout.offset(p), with->layout.size(p))));
      std::copy_n(gradients.data() + b.first, b.count, memory.data());
    }
  }
};

}  // namespace belay::inline BELAY_ABI
