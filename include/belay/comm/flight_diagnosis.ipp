// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations that ranks wait in, by their flight recorders. The sentence: a rank that never came to an operation,
// what it does instead, and the ranks that wait for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

#include "belay/comm/flight_diagnosis.hpp"
#include "belay/comm/ranks_text.hpp"
#include "belay/comm/signal_name.hpp"
#include "belay/core/error.hpp"

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

[[gnu::cold]] BELAY_DECL std::string duration_text(std::uint64_t us) {
  char out[32] = "";
  const auto value = static_cast<double>(us);
  if (us >= 100'000)
    std::snprintf(out, sizeof out, us < 10'000'000 ? "%.2f s" : "%.0f s", value * 1e-6);
  else if (us >= 1'000)
    std::snprintf(out, sizeof out, "%.1f ms", value * 1e-3);
  else if (us > 0)
    std::snprintf(out, sizeof out, "%.0f us", value);
  return out;
}

[[gnu::cold]] BELAY_DECL std::string operation_text(const flight_record& call, lane which) {
  std::string out = std::string(which == lane::stream ? "started " : "") + name(call.what);
  if (call.what != operation::exchange) out += " #" + std::to_string(call.number);
  return call.group == 0 ? out : out + " of group " + std::to_string(call.group);
}

/// Makes the sentence of a world, which outlives it. Reads once, when it is made, which ranks wait in which operation.
class flight_diagnosis {
 public:
  explicit flight_diagnosis(const flight_snapshot& world)
      : world_(&world), open_(open_operations(world)), cause_(world.cause.value_or(abort_cause{})) {}

  [[nodiscard, gnu::cold]] std::string text() const {
    if (!world_->cause) return "no rank has failed" + after("; ", waits());
    switch (cause_.fault) {
      case comm_fault::mismatch: return mismatch();
      case comm_fault::peer_failed: return ended() + after("; ", waits());
      case comm_fault::timeout: {
        const std::string seen = absences();
        return seen.empty() ? cause_.message : seen;
      }
      case comm_fault::revoked: break;
    }
    return (cause_.message.empty() ? "the group was given up" : cause_.message) + after("; ", waits());
  }

 private:
  [[nodiscard, gnu::cold]] static std::string after(const char* joint, const std::string& text) {
    return text.empty() ? text : joint + text;
  }
  [[nodiscard]] bool is_culprit(int rank) const {
    return std::find(cause_.culprits.begin(), cause_.culprits.end(), rank) != cause_.culprits.end();
  }
  [[nodiscard]] static bool holds(const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }

  // "ranks 0, 1 have waited there for 0.21 s"; "rank 0 waits there" where nobody slept.
  [[nodiscard, gnu::cold]] std::string waiting(const std::vector<int>& ranks, const open_operation& call,
                                               const std::string& place) const {
    const std::uint64_t end = world_->until_us;
    const bool one = ranks.size() == 1, slept = call.since_us > 0 && end > call.since_us;
    const char* const verb = slept ? (one ? " has waited " : " have waited ") : (one ? " waits " : " wait ");
    return ranks_text(ranks) + verb + place + (slept ? " for " + duration_text(end - call.since_us) : "");
  }
  [[nodiscard, gnu::cold]] static std::string place_of(const open_operation& call) {
    return operation_text(call.call, call.which) + " at " + call.call.site;
  }

  // "ranks 0, 1 have waited in all_gather #118 at train.cpp:88 for 0.21 s; ...", without the culprits.
  [[nodiscard, gnu::cold]] std::string waits() const {
    std::string out;
    for (const open_operation& call : open_) {
      std::vector<int> innocent;
      for (int rank : call.inside) {
        if (!world_->cause || !is_culprit(rank)) innocent.push_back(rank);
      }
      if (innocent.empty()) continue;
      out += (out.empty() ? "" : "; ") + waiting(innocent, call, "in " + place_of(call));
    }
    return out;
  }

  // Which ranks never entered what, and what the ranks do that wait nowhere.
  [[nodiscard, gnu::cold]] std::string absences() const {
    std::string out;
    std::vector<bool> elsewhere(world_->ranks.size());
    for (const open_operation& call : open_) {
      const bool exchange = call.call.what == operation::exchange;
      if (call.missing.empty() && !exchange) continue;
      out += out.empty() ? "" : "; ";
      out += exchange ? waiting(call.inside, call, "for others in " + place_of(call))
                      : ranks_text(call.missing) + " never entered " + place_of(call) + "; " +
                            waiting(call.inside, call, "there");
      for (int rank : exchange ? cause_.culprits : call.missing) {
        if (!waits_somewhere(rank)) elsewhere.at(static_cast<std::size_t>(rank)) = true;
      }
    }
    for (int rank = 0; rank < world_->size(); ++rank) {  // also one that was stopped inside of an operation
      if (world_->rank(rank).state == rank_state::stopped) elsewhere[static_cast<std::size_t>(rank)] = true;
    }
    std::size_t count = 0;
    std::string what_they_do;
    for (int rank = 0; rank < world_->size(); ++rank) {
      if (elsewhere[static_cast<std::size_t>(rank)] && ++count <= most_told) what_they_do += "; " + whereabouts(rank);
    }
    if (!out.empty() && count == 0 && open_.size() > 1) out += "; they wait for each other";
    out += what_they_do;
    if (count > most_told) out += "; and " + std::to_string(count - most_told) + " more";
    return out;
  }

  [[nodiscard]] bool waits_somewhere(int rank) const {
    return std::any_of(open_.begin(), open_.end(),
                       [&](const open_operation& call) { return holds(call.inside, rank); });
  }

  // "rank 2 is running, after all_gather #117 at train.cpp:87"
  [[nodiscard, gnu::cold]] std::string whereabouts(int rank) const {
    const char* how = "is running";
    switch (world_->rank(rank).state) {
      case rank_state::running: break;
      case rank_state::stopped: how = "is stopped"; break;
      case rank_state::gone: how = "is gone"; break;
      case rank_state::left: how = "has left"; break;
      case rank_state::absent: how = "has not come"; break;
      case rank_state::unknown: how = "cannot be seen from here"; break;
    }
    return "rank " + std::to_string(rank) + " " + how + ", " + world_->rank(rank).called.last().text();
  }

  [[nodiscard, gnu::cold]] std::string ended() const {
    if (cause_.culprits.empty()) return cause_.message;
    const int rank = cause_.culprits.front();
    const std::string where_it_was = world_->rank(rank).called.last().text();
    if (cause_.signal > 0) {
      return "rank " + std::to_string(rank) + " was ended by " + signal_name(cause_.signal) + " " + where_it_was;
    }
    const std::string code = cause_.exit_code >= 0 ? "exited with code " + std::to_string(cause_.exit_code) : "";
    if (cause_.message.empty()) {
      return "rank " + std::to_string(rank) + " " + (code.empty() ? "failed" : code) + " " + where_it_was;
    }
    return cause_.message +
           (code.empty() || cause_.message.find(code) != std::string::npos ? "" : " (it " + code + ")");
  }

  [[nodiscard, gnu::cold]] std::string mismatch() const {
    for (const open_operation& call : open_) {
      if (call.call.what == operation::exchange || cause_.culprits.empty() ||
          !holds(call.inside, cause_.culprits.front())) {
        continue;
      }
      const std::string group = call.call.group == 0 ? "" : " of group " + std::to_string(call.call.group);
      return "the ranks do not agree on operation #" + std::to_string(call.call.number) + group + ": " + cause_.message;
    }
    return "the ranks do not agree: " + cause_.message;
  }

  static constexpr std::size_t most_told = 8;

  const flight_snapshot* world_;
  std::vector<open_operation> open_;
  abort_cause cause_;
};

[[gnu::cold]] BELAY_DECL std::string verdict(const flight_snapshot& world) { return flight_diagnosis(world).text(); }

}  // namespace belay::inline BELAY_ABI
