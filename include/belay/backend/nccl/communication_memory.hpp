// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The memory of a device that a rank with a device of its own communicates with over NCCL. What follows from a plan is
// known where there is no device; what NCCL's communicators take is estimated.
// IWYU pragma: private, include "belay/backend/nccl/world.hpp"
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "belay/backend/cuda/communication_memory.hpp"
#include "belay/comm/axis.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// How reductions are added. `any`: as NCCL does, whose order depends on the machine. `fixed_order`: by Belay, in rank
/// order, with the bits of every backend that sums so; each rank then moves and adds what it takes in that order.
enum class sums : std::uint8_t { any, fixed_order };

/// Bytes of a rank's device that a barrier adds.
inline constexpr std::size_t bytes_of_barrier = 16;

/// How an NCCL rank is made.
struct rank_options {
  /// Memory of the device for sums in rank order and for an all_to_all in place: more rounds with less. Unless said
  /// here it is what the largest reduction that is planned needs, as a power of two, `least_workspace` to
  /// `most_workspace`; without a plan, or where NCCL adds, the least.
  std::optional<std::size_t> workspace_bytes = {};
  /// How often the watchdog looks.
  std::chrono::steady_clock::duration watch_period = std::chrono::milliseconds(50);

  /// Two exchanges and a kernel of a round take some 60 us beside what they move: 8 MiB in 40 us or so, 64 MiB in 340.
  static constexpr std::size_t least_workspace = std::size_t{8} << 20, most_workspace = std::size_t{64} << 20;

  /// The workspace of ranks in whose largest reduction in rank order each has so many bytes.
  [[nodiscard]] std::size_t workspace_for(std::size_t reduced) const noexcept {
    return workspace_bytes.value_or(std::bit_ceil(std::clamp(reduced, least_workspace, most_workspace)));
  }
};

/// The options of a world: how its ranks are made, and, for plans, the bytes that communicators take, which NCCL does
/// not say beforehand.
struct world_options {
  /// How ranks are made, and bytes of a device for the communicator of all ranks, and for each group beside it.
  rank_options ranks = {};
  std::size_t parent_bytes = std::size_t{640} << 20;
  std::size_t group_bytes = std::size_t{16} << 20;

  /// The workspace of each of `size` ranks that call those collectives.
  [[nodiscard]] std::size_t workspace_for(int size, const rehearsal::call_sizes& planned, sums how) const noexcept {
    return ranks.workspace_for(how == sums::fixed_order && size > 1 ? planned.largest_reduced() : 0);
  }
  /// Bytes of its device that each of `size` ranks communicates with, for a plan: the groups that a rehearsal has
  /// recorded are made at launch, and the workspace is that of the largest reduction. An estimate; the true number is
  /// measured there.
  [[nodiscard]] std::size_t bytes_of_rank(int size, const mesh_record& groups, const rehearsal::call_sizes& planned,
                                          sums how) const noexcept {
    checked_size all = workspace_for(size, planned, how);
    all += bytes_of_barrier + cuda::bytes_of_calls;
    if (size == 1) return all.saturated();
    all += parent_bytes;
    std::size_t made = 1;  // of all ranks
    for (const auto& each : groups.entries())
      for (const axis which : all_axes) made += each.asked.has(which) ? 1U : 0U;
    all += checked_size(group_bytes) * made;
    return all.saturated();
  }
};

}  // namespace belay::inline BELAY_ABI::nccl
