// expect: the optimizer takes what finish.target_tokens. returned, moved in
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <utility>

#include "belay/train/optimizer.hpp"

struct group {
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;
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
using buckets = belay::gradient_buckets<float, group>;
using optimizer = belay::adamw<float, group>;

void apply(optimizer& adam, buckets& b, const belay::committed_step& committed) {
#ifdef BELAY_BROKEN
  adam.apply(committed, b, belay::clip_factor::none());  // neither reduced nor divided
#else
  adam.apply(committed, b.finish(belay::target_tokens{8}), belay::clip_factor::none());
#endif
}
