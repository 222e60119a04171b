// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A flight as JSON for programs.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/belay_fr/alignment.hpp"
#include "tools/belay_fr/flight.hpp"

namespace belay_fr {

[[nodiscard]] inline nlohmann::ordered_json json_of(const flight_entry& of) {
  const nlohmann::ordered_json finished = of.heard ? nlohmann::ordered_json() : nlohmann::ordered_json(of.finished);
  return {{"op", of.op},     {"group", of.group},    {"number", of.number},      {"bytes", of.bytes},
          {"site", of.site}, {"finished", finished}, {"waited_us", of.waited_us}};
}

[[nodiscard]] inline const char* name(presence how) {
  switch (how) {
    case presence::outside: return "outside";
    case presence::finished: return "finished";
    case presence::inside: return "inside";
    case presence::heard: return "heard";
    case presence::never: return "never";
    case presence::not_kept: return "not_kept";
  }
  return "outside";
}

/// The output of belay-fr, for programs. ASCII alone: a terminal obeys none of it.
[[nodiscard]] inline std::string json_text(const flight& of, std::size_t count, int only) {
  nlohmann::ordered_json out;
  out["verdict"] = of.verdict;
  out["cause"] = {{"kind", of.cause.kind},   {"culprits", of.cause.culprits}, {"message", of.cause.message},
                  {"there", of.cause.there}, {"signal", of.cause.signal},     {"exit_code", of.cause.exit_code}};
  out["job"] = of.job;
  out["epoch"] = of.epoch;
  out["transport"] = of.transport;
  if (of.told_by >= 0) out["told_by"] = of.told_by;
  out["by_rank"] = nlohmann::ordered_json::array();
  for (const rank_record& rank : of.ranks) {
    if (only >= 0 && rank.rank != only) continue;
    nlohmann::ordered_json each{{"rank", rank.rank}, {"pid", rank.pid}, {"state", rank.state}};
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const auto& entries = rank.lanes[lane].entries;
      const char* const key = lane == 0 ? "last_called" : "last_started";
      each[key] = entries.empty() ? nlohmann::ordered_json() : json_of(entries.back());
    }
    out["by_rank"].push_back(each);
  }
  out["operations"] = nlohmann::ordered_json::array();
  for (std::size_t lane = 0; lane < 2; ++lane) {
    for (const row& each : alignment(of, lane).last(count)) {
      nlohmann::ordered_json line{{"lane", lane_names[lane]}, {"group", each.key.group}, {"number", each.key.number}};
      line["by_rank"] = nlohmann::ordered_json::array();
      for (std::size_t rank = 0; rank < each.by_rank.size(); ++rank) {
        const cell& here = each.by_rank[rank];
        if (here.how == presence::outside || (only >= 0 && static_cast<int>(rank) != only)) continue;
        nlohmann::ordered_json part{{"rank", rank}, {"presence", name(here.how)}};
        if (here.what != nullptr) part.update(json_of(*here.what));
        line["by_rank"].push_back(part);
      }
      if (!line["by_rank"].empty()) out["operations"].push_back(line);
    }
  }
  return out.dump(1, ' ', true) + "\n";
}

}  // namespace belay_fr
