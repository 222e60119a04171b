// expect: a tensor over one group has counts and no shape
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/reduction.hpp"
#include "belay/parallel/redistribute.hpp"

struct group {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
  int rank() const;
  int size() const;
  void barrier(belay::where) const;
  template <class Op>
  void all_reduce(std::span<float>, Op, belay::where) const;
  template <class Op>
  void reduce_scatter_v(std::span<float>, std::span<const std::size_t>, Op, belay::where) const;
  void all_gather_v(std::span<float>, std::span<const std::size_t>, belay::where) const;
};
template <class Placement>
using tensor = belay::sharded<float, Placement, group>;

void move(tensor<belay::shard<0>> t, std::span<float> storage) {
#ifdef BELAY_BROKEN
  static_cast<void>(storage);
  static_cast<void>(belay::redistribute<belay::shard<1>>(std::move(t)));
#else
  static_cast<void>(belay::redistribute<belay::replicate>(std::move(t), storage));
#endif
}
