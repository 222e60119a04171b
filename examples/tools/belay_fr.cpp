// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// belay-fr FILE: what a flight file says. The verdict first, then each rank's last operation, then the last operations
// of all ranks side by side.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/belay_fr/alignment.hpp"
#include "tools/belay_fr/flight.hpp"
#include "tools/belay_fr/picture.hpp"

namespace {

using nlohmann::ordered_json;
using namespace belay_fr;

ordered_json json_of(const entry& of) {
  const ordered_json finished = of.heard ? ordered_json() : ordered_json(of.finished);
  return {{"op", of.op},     {"group", of.group},    {"number", of.number},      {"bytes", of.bytes},
          {"site", of.site}, {"finished", finished}, {"waited_us", of.waited_us}};
}

const char* name(presence how) {
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

// The same for programs.
std::string json_text(const flight& of, std::size_t count, int only) {
  ordered_json out;
  out["verdict"] = of.verdict;
  out["cause"] = {{"kind", of.cause.kind},   {"culprits", of.cause.culprits}, {"message", of.cause.message},
                  {"there", of.cause.there}, {"signal", of.cause.signal},     {"exit_code", of.cause.exit_code}};
  out["job"] = of.job;
  out["epoch"] = of.epoch;
  out["transport"] = of.transport;
  if (of.told_by >= 0) out["told_by"] = of.told_by;
  out["by_rank"] = ordered_json::array();
  for (const rank_record& rank : of.ranks) {
    if (only >= 0 && rank.rank != only) continue;
    ordered_json each{{"rank", rank.rank}, {"pid", rank.pid}, {"state", rank.state}};
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const auto& entries = rank.lanes[lane].entries;
      each[lane == 0 ? "last_called" : "last_started"] = entries.empty() ? ordered_json() : json_of(entries.back());
    }
    out["by_rank"].push_back(each);
  }
  out["operations"] = ordered_json::array();
  for (std::size_t lane = 0; lane < 2; ++lane) {
    for (const row& each : alignment(of, lane).last(count)) {
      ordered_json line{{"lane", lane_names[lane]}, {"group", each.key.group}, {"number", each.key.number}};
      line["by_rank"] = ordered_json::array();
      for (std::size_t rank = 0; rank < each.by_rank.size(); ++rank) {
        const cell& here = each.by_rank[rank];
        if (here.how == presence::outside || (only >= 0 && static_cast<int>(rank) != only)) continue;
        ordered_json part{{"rank", rank}, {"presence", name(here.how)}};
        if (here.what != nullptr) part.update(json_of(*here.what));
        line["by_rank"].push_back(part);
      }
      if (!line["by_rank"].empty()) out["operations"].push_back(line);
    }
  }
  return out.dump(1) + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Says why a run of several ranks failed, from the flight file it left"};
  std::vector<std::string> files;
  int rank = -1;
  std::size_t count = 10;
  bool as_json = false;
  app.add_option("FILE", files, "belay-flight-JOB.json, from the folder BELAY_FLIGHT_DIR; several one after the other")
      ->required();
  app.add_option("--rank", rank, "only this rank's operations, with all that is known of each");
  app.add_option("--last", count, "so many operations of each rank")->capture_default_str();
  app.add_flag("--json", as_json, "for programs: the same as JSON");
  CLI11_PARSE(app, argc, argv);
  const auto show = [&](const std::string& file) {
    const flight read = read_flight(file);
    if (rank < -1 || rank >= static_cast<int>(read.ranks.size())) {
      std::fprintf(stderr, "belay-fr: --rank %d: the file has ranks 0 to %zu\n", rank, read.ranks.size() - 1);
      return 2;
    }
    std::string out = files.size() > 1 && !as_json ? "== " + file + " ==\n" : "";
    if (as_json) {
      out += json_text(read, count, rank);
    } else {
      out += head_text(read) + "\n" + ranks_table(read);
      out += rank < 0 ? side_by_side(read, count).text() : rank_table(read, static_cast<std::size_t>(rank), count);
    }
    const bool written = std::fwrite(out.data(), 1, out.size(), stdout) == out.size() && std::fflush(stdout) == 0;
    return written ? 0 : 1;
  };
  int worst = 0;
  for (const std::string& file : files) {
    try {
      worst = std::max(worst, show(file));
    } catch (const std::exception& problem) {
      const std::string_view what = problem.what();
      const std::string_view prefix = what.starts_with("belay: ") ? "belay: " : "";
      std::fprintf(stderr, "belay-fr: %s\n", plain(what.substr(prefix.size())).c_str());
      worst = std::max(worst, 1);
    }
  }
  return worst;
}
