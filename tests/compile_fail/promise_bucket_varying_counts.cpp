// expect: the ranks of a replica group own different numbers of gradients
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/bucket.hpp"

struct operations {
  int rank() const;
  int size() const;
  void barrier(belay::where) const;
  template <class Op>
  belay::pending start_all_reduce(std::span<float>, Op, belay::start_order) const;
  template <class Op>
  belay::pending start_reduce_scatter_v(std::span<float>, std::span<const std::size_t>, Op, belay::start_order) const;
  belay::pending start_all_gather_v(std::span<float>, std::span<const std::size_t>, belay::start_order) const;
  void all_gather(std::span<const std::uint64_t>, std::span<std::uint64_t>, belay::where) const;
};
struct group : operations {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
};
struct equal_counts : operations {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = false;
};
#ifdef BELAY_BROKEN
bool whole(const belay::gradient_buckets<float, equal_counts>& b) { return b.complete(); }
#else
bool whole(const belay::gradient_buckets<float, group>& b) { return b.complete(); }
#endif
