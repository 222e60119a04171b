// expect: a partial sum becomes the same bits
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/reduction.hpp"
#include "belay/parallel/redistribute.hpp"

struct operations {
  int rank() const;
  int size() const;
  void barrier(belay::where) const;
  template <class Op>
  void all_reduce(std::span<float>, Op, belay::where) const;
  template <class Op>
  void reduce_scatter_v(std::span<float>, std::span<const std::size_t>, Op, belay::where) const;
  void all_gather_v(std::span<float>, std::span<const std::size_t>, belay::where) const;
};
struct group : operations {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
};
struct any_order : operations {
  static constexpr bool has_varying_counts = true;
};

#ifdef BELAY_BROKEN
using chosen = any_order;
#else
using chosen = group;
#endif
void move(belay::sharded<float, belay::partial<belay::sum>, chosen> t) {
  static_cast<void>(belay::redistribute<belay::replicate>(std::move(t)));
}
