// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rehearsal has found out for a run: the sizes of its regions, and orders to follow.
// IWYU pragma: private, include "belay/train/run.hpp"
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "belay/comm/heap_of.hpp"  // IWYU pragma: export
#include "belay/core/config.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
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
  bool owed = false;                                 // whether owed backwards keep memory of the trainer's own
  computes_on computes = computes_on::host;          // what the body was rehearsed for
};

/// The leases that were planned for a rank, and the regions for them.
struct planned_run {
  rank_plan plan;
  run_memory memory;
};

inline constexpr const char* workspace_row = "workspace of products";
/// Plans `wanted` bytes that a kit's products work in, which the run that is rehearsed leases first.
inline void add_workspace(planned_run& to, std::size_t wanted) {
  to.memory.workspace = wanted;
  const std::size_t bytes = leased_size(wanted);
  if (bytes == 0) return;
  to.plan.add(tier::device, workspace_row, bytes);
  to.memory.persistent[static_cast<std::size_t>(tier::device)] += bytes;
}

/// Widens the workspace of products in a plan to at least `wanted` bytes: a rehearsal knows less of it than the kit
/// that will run.
inline void widen_workspace(planned_run& to, std::size_t wanted) {
  if (to.memory.workspace >= wanted) return;
  rank_plan others;
  for (const plan_item& item : to.plan.items())
    if (item.purpose != workspace_row) others.add(item);
  to.plan = std::move(others);
  to.memory.persistent[static_cast<std::size_t>(tier::device)] -= leased_size(to.memory.workspace);
  add_workspace(to, wanted);
}

/// A region of `bytes` in a tier. In tier file it has addresses alone.
template <class Memory>
[[nodiscard]] Memory memory_in(tier where_it_is, std::size_t bytes) {
  if constexpr (std::constructible_from<Memory, reserved_addresses&&>)
    if (where_it_is == tier::file) return Memory(reserved_addresses(bytes));
  return Memory{bytes};
}

/// An engine whose kit has a stream of a policy that is chosen when the program runs.
template <class Engine>
concept has_stream_settings = std::constructible_from<typename Engine::kit_type, const stream_settings&, int>;

/// Where a run gets its memory and its engine. `memory` and `kit` are for memory that is not made of a size alone, such
/// as a device's: the rank of such a world has them.
template <class Engine>
struct run_parts {
  using memory_type = typename Engine::memory_type;
  using kit_type = typename Engine::kit_type;

  std::function<memory_type(tier, std::size_t)> memory = {};
  std::function<kit_type()> kit = {};

  bool addresses_only = false;  // in a rehearsal

  [[nodiscard]] memory_type region(tier where_it_is, std::size_t bytes) const {
    if constexpr (std::constructible_from<memory_type, reserved_addresses&&>)
      if (addresses_only) return memory_type(reserved_addresses(bytes));
    if constexpr (std::constructible_from<memory_type, std::size_t>)
      return memory_in<memory_type>(where_it_is, bytes);
    else
      return memory(where_it_is, bytes);
  }
  void make(std::optional<Engine>& engine, std::size_t activations, tier_meter& meter, const stream_settings& streams,
            int rank) const {
    if constexpr (!std::constructible_from<memory_type, std::size_t>)
      engine.emplace(region(tier::device, activations), meter, kit());
    else if constexpr (has_stream_settings<Engine>)
      engine.emplace(region(tier::device, activations), meter, streams, rank);
    else
      engine.emplace(memory_type{activations}, meter);
  }
  /// A region of `bytes` in a tier, of zeros, as pages of the host are. Leased sizes are whole words.
  [[nodiscard]] memory_type zeroed_region([[maybe_unused]] Engine& engine, tier where_it_is, std::size_t bytes) const {
    memory_type out = region(where_it_is, bytes);
    if constexpr (!std::constructible_from<memory_type, std::size_t>) {
      if (where_it_is != tier::device) return out;
      engine.kit().each(bytes / sizeof(std::uint64_t),
                        kernel::fill<std::uint64_t>{reinterpret_cast<std::uint64_t*>(out.data()), 0});
      engine.synchronize();
    }
    return out;
  }
};

}  // namespace belay::inline BELAY_ABI
