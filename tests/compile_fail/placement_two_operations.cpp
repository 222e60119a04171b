// expect: the partials of one placement have one operation
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/reduction.hpp"
#include "belay/parallel/redistribute.hpp"

struct fake_group {
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
struct mesh {
  using group_type = fake_group;
  const belay::axes& shape() const;
  const belay::coordinate& layout_coordinate() const;
  const fake_group& group(belay::axis, belay::where) const;
};
using both [[maybe_unused]] = belay::placed<belay::shard<0, belay::axis::expert>, belay::shard<1, belay::axis::tensor>>;
template <class Placement>
using tensor = belay::sharded<float, Placement, mesh>;

void move(tensor<belay::placed<belay::partial<belay::sum>>> t, std::span<float> storage) {
#ifdef BELAY_BROKEN
  static_cast<void>(belay::redistribute<
                    belay::placed<belay::partial<belay::sum>, belay::partial<belay::maximum, belay::axis::tensor>>>(
      std::move(t), storage));
#else
  static_cast<void>(belay::redistribute<belay::replicate>(std::move(t), storage));
#endif
}
