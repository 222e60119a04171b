// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the recorders of a world show when it stopped: which operations ranks wait in, who is there, and who of the
// group never came. Read from the shared block alone, so that whoever holds it can tell a dead rank's part too.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/backend/host/control.hpp"
#include "belay/backend/host/group_memory.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/backend/host/process_state.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How a rank is: `left` has ended its body, `gone` has lost its process before that.
enum class rank_state { running, stopped, gone, left };

[[nodiscard]] constexpr const char* name(rank_state state) noexcept {
  switch (state) {
    case rank_state::running: return "running";
    case rank_state::stopped: return "stopped";
    case rank_state::gone: return "gone";
    case rank_state::left: return "left";
  }
  return "unknown";
}

[[nodiscard]] inline rank_state state_of(const health& world, int rank) noexcept {
  if (world.left(rank, lane::caller)) return rank_state::left;
  const pid_t pid = world.pid_of(rank);
  if (pid == 0) return rank_state::running;  // a thread
  switch (state_of_process(pid)) {
    case process_state::stopped: return rank_state::stopped;
    case process_state::gone: return rank_state::gone;
    case process_state::running: break;
  }
  return rank_state::running;
}

/// A group by its number, and its ranks of the world in group order.
struct known_group {
  std::uint32_t number = 0;
  std::vector<int> members;
};

/// The groups that ranks have made, as far as their memory was not given to others since.
[[nodiscard]] inline std::vector<known_group> groups_of(const health& world) {
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
        group_memory(world.shared().groups() + each.offset, static_cast<int>(each.size)).members();
    out.push_back({each.id, std::vector<int>(members, members + each.size)});
  }
  if (locked) header.registry_lock.store(0, std::memory_order_release);
  return out;
}

/// An operation that ranks are in, and do not come out of.
struct open_operation {
  lane which = lane::caller;
  flight_record call;          // as the first of those ranks recorded it
  std::vector<int> inside;     // ranks of the world
  std::vector<int> missing;    // of its group, that never entered it
  std::uint64_t since_us = 0;  // by the steady clock, the longest wait; 0 where nobody sleeps
};

/// The last operation of `rank` in that group and lane that is of the same kind as `call` (exchanges are counted on
/// their own); an empty record where there is none.
[[nodiscard]] inline flight_record last_like(const health& world, int rank, lane which, const flight_record& call) {
  const flight_recorder<>& recorder = world.recorder(rank, which);
  const std::uint64_t end = recorder.count();
  for (std::uint64_t turn = end; turn > 0 && end - turn < recorder.capacity(); --turn) {
    flight_record found = recorder[turn - 1];
    const bool like = (found.what == operation::exchange) == (call.what == operation::exchange);
    if (found.what != operation::none && found.group == call.group && like) return found;
  }
  return {};
}

/// All operations that ranks are in, in the order of their groups' numbers.
[[nodiscard]] inline std::vector<open_operation> open_operations(const health& world) {
  std::vector<open_operation> out;
  const auto find = [&](lane which, const flight_record& call) -> open_operation& {
    for (open_operation& each : out) {
      const bool exchanges = each.call.what == operation::exchange && call.what == operation::exchange;
      const bool collectives = each.call.what != operation::exchange && call.what != operation::exchange;
      if (each.which != which || each.call.group != call.group) continue;
      if (exchanges || (collectives && each.call.number == call.number)) return each;
    }
    out.push_back({which, call, {}, {}, 0});
    return out.back();
  };
  for (lane which : {lane::caller, lane::stream}) {
    for (int rank = 0; rank < world.ranks(); ++rank) {
      const flight_record last = world.recorder(rank, which).last();
      if (last.what == operation::none || last.finished) continue;
      open_operation& here = find(which, last);
      here.inside.push_back(rank);
      if (last.waiting_us > 0 && (here.since_us == 0 || last.waiting_us < here.since_us))
        here.since_us = last.waiting_us;
    }
  }
  const std::vector<known_group> groups = groups_of(world);
  for (open_operation& each : out) {
    if (each.call.what == operation::exchange) continue;  // pairs meet in it: nobody has to come
    for (const known_group& group : groups) {
      if (group.number != each.call.group) continue;
      for (int rank : group.members) {
        if (rank < 0 || rank >= world.ranks()) continue;
        const flight_record last = last_like(world, rank, each.which, each.call);
        if (last.what == operation::none || last.number < each.call.number) each.missing.push_back(rank);
      }
    }
  }
  std::sort(out.begin(), out.end(), [](const open_operation& a, const open_operation& b) {
    return std::pair(a.call.group, a.inside) < std::pair(b.call.group, b.inside);
  });
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
