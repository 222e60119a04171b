// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which ranks wait where, by their flight recorders.
#pragma once

#include <algorithm>
#include <utility>

#include "belay/comm/stalled_operations.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL flight_record last_like(const flight_history& from, const flight_record& call) {
  for (std::uint64_t position = from.count(); position > from.first(); --position) {
    flight_record found = from[position - 1];
    const bool like = (found.what == operation::exchange) == (call.what == operation::exchange);
    if (found.what != operation::none && found.group == call.group && like) return found;
  }
  return {};
}

[[gnu::cold]] BELAY_DECL std::vector<open_operation> open_operations(const flight_snapshot& world) {
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
  for (lane which : all_lanes) {
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
  // By selection: they are few, and std::sort is much code.
  const auto before = [](const open_operation& a, const open_operation& b) {
    return a.call.group != b.call.group ? a.call.group < b.call.group : a.inside < b.inside;
  };
  for (auto place = out.begin(); place != out.end(); ++place) {
    std::swap(*place, *std::min_element(place, out.end(), before));
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
