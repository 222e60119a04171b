// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a world shows when it stopped: which operations ranks wait in, who is there, and who of the group never came.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// An operation that ranks are in, and do not come out of.
struct open_operation {
  lane which = lane::caller;
  flight_record call;          // as the first of those ranks recorded it
  std::vector<int> inside;     // ranks of the world
  std::vector<int> missing;    // of its group, that never entered it
  std::uint64_t since_us = 0;  // by the steady clock, the longest wait; 0 where nobody sleeps
};

/// The last operation in that group that is of the same kind as `call` (exchanges are counted on
/// their own); an empty record where there is none.
[[nodiscard]] inline flight_record last_like(const flight_history& from, const flight_record& call) {
  for (std::uint64_t turn = from.count(); turn > from.first(); --turn) {
    flight_record found = from[turn - 1];
    const bool like = (found.what == operation::exchange) == (call.what == operation::exchange);
    if (found.what != operation::none && found.group == call.group && like) return found;
  }
  return {};
}

/// All operations that ranks are in, in the order of their groups' numbers.
[[nodiscard]] inline std::vector<open_operation> open_operations(const flight_snapshot& world) {
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
    for (int rank = 0; rank < world.size(); ++rank) {
      const flight_record last = world.rank(rank).of(which).last();
      if (last.what == operation::none || last.finished || last.reported) continue;
      open_operation& here = find(which, last);
      here.inside.push_back(rank);
      if (last.waiting_us > 0 && (here.since_us == 0 || last.waiting_us < here.since_us))
        here.since_us = last.waiting_us;
    }
  }
  for (open_operation& each : out) {
    if (each.call.what == operation::exchange) continue;  // pairs meet in it: nobody has to come
    for (const known_group& group : world.groups) {
      if (group.number != each.call.group) continue;
      for (int rank : group.members) {
        if (rank < 0 || rank >= world.size()) continue;
        const flight_record last = last_like(world.rank(rank).of(each.which), each.call);
        if (last.what == operation::none || last.number < each.call.number) each.missing.push_back(rank);
      }
    }
  }
  std::sort(out.begin(), out.end(), [](const open_operation& a, const open_operation& b) {
    return std::pair(a.call.group, a.inside) < std::pair(b.call.group, b.inside);
  });
  return out;
}

}  // namespace belay::inline BELAY_ABI
