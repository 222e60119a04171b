// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a world of this machine shows when it stopped. Read from the shared block alone, so that whoever holds it can
// tell a dead rank's part too.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/process_identity.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[nodiscard]] inline rank_state state_of(const world_status& world, int rank) noexcept {
  if (world.left(rank, lane::caller)) return rank_state::left;
  const pid_t pid = world.pid_of(rank);
  if (pid == 0) return world.is_absent(rank) ? rank_state::absent : rank_state::running;  // a thread
  switch (state_of_process(pid)) {
    case process_state::stopped: return rank_state::stopped;
    case process_state::gone: return rank_state::gone;
    case process_state::running: break;
  }
  return rank_state::running;
}

/// The groups that ranks have made, as far as their memory was not given to others since.
[[nodiscard]] inline std::vector<known_group> groups_of(const world_status& world) {
  control_header& header = world.shared().header();
  // Entries change under this lock. Who holds it may be dead: then nobody changes them any more.
  std::uint32_t free = 0;
  bool locked = false;
  for (int attempt = 0; attempt < 1000 && !locked; ++attempt, free = 0) {
    locked = header.registry_lock.compare_exchange_strong(free, 1, std::memory_order_acquire);
    if (!locked) ::sched_yield();
  }
  std::vector<known_group> out;
  for (shared_group_entry& each : header.groups) {
    if (each.state.load(std::memory_order_acquire) == 0) break;
    const std::uint64_t room = world.shared().shape().group_bytes;
    if (each.size == 0 || each.size > static_cast<std::uint32_t>(world.ranks()) || each.offset > room ||
        each.bytes > room - each.offset) {
      continue;  // the memory of a process that wrote where it should not
    }
    const std::int32_t* members =
        group_layout(world.shared().groups() + each.offset, static_cast<int>(each.size)).members();
    out.push_back({each.id, std::vector<int>(members, members + each.size)});
  }
  if (locked) header.registry_lock.store(0, std::memory_order_release);
  return out;
}

/// The whole world; its recorders are read when the scene is. `world`'s block must outlive it.
[[nodiscard]] inline flight_snapshot scene_of(const world_status& world) {
  const control_shape& shape = world.shared().shape();
  flight_snapshot out;
  out.job = shape.job;
  out.epoch = shape.epoch;
  out.transport = shape.space == address_space::one ? "threads" : "processes";
  if (world.aborted()) out.cause = world.cause();
  out.until_us =
      out.cause && out.cause->at_us > 0 ? out.cause->at_us : world_status::microseconds(world_status::clock::now());
  for (int rank = 0; rank < world.ranks(); ++rank) {
    out.ranks.push_back({world.pid_of(rank), state_of(world, rank), flight_history(world.recorder(rank, lane::caller)),
                         flight_history(world.recorder(rank, lane::stream))});
  }
  out.groups = groups_of(world);
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
