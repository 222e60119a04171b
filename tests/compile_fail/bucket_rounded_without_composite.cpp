// expect: gradients of bf16 parameters are rounded, sent and added as one started composite
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/bucket.hpp"

// Starts what buckets need, but for composites where they are missing.
struct group {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
#ifndef BELAY_BROKEN
  template <class Work>
  [[nodiscard]] belay::pending start_composite(belay::operation, const Work&, const belay::start_order&) const {
    return {};
  }
#endif
};

void go(const belay::bucket_reduction<belay::bf16>& one, const group& ranks, const belay::start_order& how) {
  static_cast<void>(one.start(ranks, how));
}
