// expect: experts are reached through symmetric memory
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/rehearsal.hpp"
#include "belay/parallel/experts.hpp"

struct without_memory {
  static constexpr bool has_varying_counts = true;
  int rank() const;
  int size() const;
  void barrier(belay::where) const;
  void all_gather_v(std::span<std::int64_t>, std::span<const std::size_t>, belay::where) const;
};
struct no_heap {
  struct heap_slot {};
};
#ifdef BELAY_BROKEN
bool any(const belay::expert_exchange<float, without_memory, no_heap>& experts) { return experts.local_experts() > 0; }
#else
bool any(const belay::expert_exchange<float, belay::rehearsal::group>& experts) { return experts.local_experts() > 0; }
#endif
