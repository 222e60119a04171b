// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reading a world's state out of its control block.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL rank_state state_of(const world_status& world, int rank) noexcept {
  if (world.left(rank, lane::caller)) return rank_state::left;
  const pid_t pid = world.pid_of(rank);
  if (pid == 0) return world.is_absent(rank) ? rank_state::absent : rank_state::running;  // a thread
  switch (state_of_process(pid)) {
    case process_state::stopped: return rank_state::stopped;
    case process_state::gone: return rank_state::gone;
    case process_state::running:
    case process_state::unknown: break;
  }
  return rank_state::running;
}

// The groups that ranks have made, but for those whose memory has been given to others since.
[[nodiscard, gnu::cold]] BELAY_DECL std::vector<known_group> groups_of(const world_status& world) {
  control_header& header = world.shared().header();
  // Entries change under this lock. Its holder may be dead; then they change no more.
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
      continue;  // a process has written where it should not
    }
    const std::int32_t* members =
        group_layout(world.shared().groups() + each.offset, static_cast<int>(each.size)).members();
    out.push_back({each.id, std::vector<int>(members, members + each.size)});
  }
  if (locked) header.registry_lock.store(0, std::memory_order_release);
  return out;
}

[[gnu::cold]] BELAY_DECL flight_snapshot snapshot_of(const world_status& world) {
  const control_shape& shape = world.shared().shape();
  flight_snapshot out;
  out.job = shape.job;
  out.epoch = shape.epoch;
  out.transport = shape.space == address_space::one ? "threads" : "processes";
  if (world.aborted()) out.cause = world.cause();
  out.until_us = out.cause && out.cause->at_us > 0 ? out.cause->at_us : world_status::microseconds(world.now());
  for (int rank = 0; rank < world.ranks(); ++rank) {
    out.ranks.push_back({world.pid_of(rank), state_of(world, rank), flight_history(world.recorder(rank, lane::caller)),
                         flight_history(world.recorder(rank, lane::stream))});
  }
  out.groups = groups_of(world);
  return out;
}

[[gnu::cold]] BELAY_DECL std::string verdict(const world_status& world) { return belay::verdict(snapshot_of(world)); }

[[gnu::cold]] BELAY_DECL void report_failure(const world_status& world) noexcept {
  try {
    if (const std::optional<std::string> folder = flight_folder()) report_flight(snapshot_of(world), *folder);
  } catch (...) {  // too little memory for words: the ranks' own errors say it
  }
}

[[gnu::cold]] BELAY_DECL void report_failure_once(const world_status& world) noexcept {
  if (world.shared().header().reported.exchange(1, std::memory_order_relaxed) == 0) report_failure(world);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
