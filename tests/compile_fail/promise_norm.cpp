// expect: the norm adds a table over all ranks
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/rehearsal.hpp"
#include "belay/train/clip.hpp"

struct silent_group {
  int rank() const;
  int size() const;
  void barrier(belay::where) const;
  void all_gather(std::span<const std::uint64_t>, std::span<std::uint64_t>, belay::where) const;
};
#ifdef BELAY_BROKEN
using chosen = silent_group;
#else
using chosen = belay::rehearsal::group;
#endif
double length(belay::gradient_norm<float>& norm, const belay::reduced_gradients<float>& reduced, const chosen& all) {
  return norm(reduced, all).value();
}
