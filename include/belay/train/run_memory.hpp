// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rehearsal has found out for a run: the sizes of its regions, and orders to follow.
// IWYU pragma: private, include "belay/train/run.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/gathers/order.hpp"
#include "belay/step/call_order.hpp"
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of the regions of one rank.
struct run_memory {
  std::size_t activations = 0;
  std::vector<std::size_t> windows;                  // symmetric memory, in the order in which it is asked for
  std::vector<std::size_t> of_steps;                 // memory of steps alone, in the order in which it is asked for
  std::vector<gather_plan> gathers;                  // in which order layers are, by store that divides parameters
  std::vector<call_order> returns;                   // in which order calls are brought back, by who offloads them
  std::array<std::size_t, tier_count> persistent{};  // by tier: what lives as long as the run
  std::size_t workspace = 0;                         // of the kit's products, which is a part of that
};

/// What a rank was planned to lease, and the regions for it.
struct planned_run {
  rank_plan plan;
  run_memory memory;
};

inline constexpr const char* workspace_row = "workspace of products";
/// What a kit's products work in is leased first by the run that is rehearsed.
inline void add_workspace(planned_run& to, std::size_t wanted) {
  to.memory.workspace = wanted;
  const std::size_t bytes = leased_size(wanted);
  if (bytes == 0) return;
  to.plan.add(tier::device, workspace_row, bytes);
  to.memory.persistent[static_cast<std::size_t>(tier::device)] += bytes;
}

/// A region of `bytes` in a tier. In tier file it has addresses alone.
template <class Memory>
[[nodiscard]] Memory memory_in(tier where_it_is, std::size_t bytes) {
  if constexpr (std::constructible_from<Memory, reserved_addresses&&>)
    if (where_it_is == tier::file) return Memory(reserved_addresses(bytes));
  return Memory{bytes};
}

/// A lease for as long as the run.
struct lasting_lease {
  std::span<std::byte> memory;
  std::size_t item;  // its number in the plan
};
/// A lease of which ranks have shares.
struct rank_shares {
  std::size_t item;                // its number in the plan
  std::vector<std::size_t> bytes;  // of each rank of the world
  std::size_t reached;             // address space in symmetric memory; 0: it is not there
};

}  // namespace belay::inline BELAY_ABI
