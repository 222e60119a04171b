// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What was measured, cell by cell, and the results: rows, the table that nccl-tests prints, and the JSON file.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/operation.hpp"
#include "collectives/probe.hpp"
#include "collectives/size.hpp"
#include "collectives/statistics.hpp"
#include "nlohmann/json.hpp"

namespace bench {

/// The subject of a time: the library, the hand-written baseline in one setting, MPI, the library's synchronization
/// without its checks, or a copy of one kind.
enum class contender_kind { library_call, handwritten_baseline, mpi, unchecked_baseline, copy };

struct series {
  contender_kind kind = contender_kind::library_call;
  std::string name;  // of the setting or kind
  bool in_place = false;
  std::vector<double> us;  // one a sample; NaN where it was left out
};

/// All samples of one operation and size.
struct cell {
  op what = op::barrier;
  extent size;
  std::string algorithm[2];                                     // by in_place
  std::vector<std::pair<machine_state, machine_state>> around;  // before and after each sample
  std::vector<series> all;
  std::optional<std::size_t> wrong[2];  // by in_place; nothing: not checked or no such form
};

struct row {
  op what = op::barrier;
  extent size;
  bool in_place = false;
  std::string state;
  std::string algorithm;
  double p50_us = 0, p99_us = 0, rtt_us = 0, copy_scaling = 0;
  std::size_t samples = 0;
  std::optional<std::size_t> wrong;
  std::optional<double> copy_us;
  std::map<std::string, double> peers;
  std::string baseline_setting;
};

/// Which of a cell's samples were taken in `state`, before and after.
[[nodiscard]] inline std::vector<std::size_t> samples_in(const cell& of, const states& found,
                                                         const std::string& state) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < of.around.size(); ++i) {
    if (found.of(of.around[i].first.round_trip_us) == state && found.of(of.around[i].second.round_trip_us) == state) {
      out.push_back(i);
    }
  }
  return out;
}

[[nodiscard]] inline std::vector<double> picked(const std::vector<double>& from,
                                                const std::vector<std::size_t>& which) {
  std::vector<double> out;
  for (const std::size_t i : which) {
    if (i < from.size() && !std::isnan(from[i])) out.push_back(from[i]);
  }
  return out;
}

/// Samples whose state changed are dropped, unless there are no others: then the row is `mixed`. Of settings and kinds
/// the best one counts. What was disturbed in every sample has no row.
[[nodiscard]] inline std::vector<row> rows_of(const std::vector<cell>& cells) {
  std::vector<double> trips;
  for (const cell& each : cells) {
    for (const auto& [before, after] : each.around) trips.push_back(before.round_trip_us);
  }
  const states found = find_states(trips);
  std::vector<row> out;
  for (const cell& each : cells) {
    bool told[2] = {};
    for (const std::string state : {"single", "near", "far", "mixed"}) {
      std::vector<std::size_t> which = samples_in(each, found, state);
      if (state == "mixed") {
        which.resize(each.around.size());
        std::iota(which.begin(), which.end(), std::size_t{0});
      } else if (which.size() < 2) {
        continue;
      }
      for (const bool in_place : {false, true}) {
        if (state == "mixed" && told[in_place ? 1 : 0]) continue;
        row one;
        one.what = each.what;
        one.size = each.size;
        one.in_place = in_place;
        one.state = state;
        one.algorithm = each.algorithm[in_place ? 1 : 0];
        one.wrong = each.wrong[in_place ? 1 : 0];
        std::vector<double> rtt, scaling;
        for (const std::size_t i : which) {
          rtt.push_back(each.around[i].first.round_trip_us);
          scaling.push_back(each.around[i].first.copy_scaling);
        }
        one.rtt_us = percentile(rtt, 0.5);
        one.copy_scaling = percentile(scaling, 0.5);
        for (const series& times : each.all) {
          const std::vector<double> us = picked(times.us, which);
          if (us.empty() || (times.kind != contender_kind::copy && times.in_place != in_place)) continue;
          const double p50 = percentile(us, 0.5);
          const auto least = [&](const std::string& peer) {
            const auto at = one.peers.try_emplace(peer, p50).first;
            const bool best = p50 <= at->second;
            if (best) at->second = p50;
            return best;
          };
          switch (times.kind) {
            case contender_kind::library_call:
              one.p50_us = p50;
              one.p99_us = percentile(us, 0.99);
              one.samples = us.size();
              break;
            case contender_kind::handwritten_baseline:
              if (least("twin")) one.baseline_setting = times.name;
              break;
            case contender_kind::mpi: (void)least("mpi"); break;
            case contender_kind::unchecked_baseline: (void)least("bare"); break;
            case contender_kind::copy: one.copy_us = one.copy_us ? std::min(*one.copy_us, p50) : p50; break;
          }
        }
        if (one.samples == 0) continue;
        told[in_place ? 1 : 0] = true;
        out.push_back(std::move(one));
      }
    }
  }
  return out;
}

/// "all_reduce 64 B in place": calls that were made, and have no row.
[[nodiscard]] inline std::vector<std::string> without_row(const std::vector<cell>& cells,
                                                          const std::vector<row>& rows) {
  std::vector<std::string> out;
  for (const cell& each : cells) {
    for (const series& times : each.all) {
      const auto of_it = [&](const row& one) {
        return one.what == each.what && one.size.bytes == each.size.bytes && one.in_place == times.in_place;
      };
      if (times.kind != contender_kind::library_call || std::any_of(rows.begin(), rows.end(), of_it)) continue;
      const std::string what = name(each.what) + (" " + std::to_string(each.size.bytes)) + " B";
      out.push_back(what + (times.in_place ? " in place" : ""));
    }
  }
  return out;
}

/// A figure of the machine between two ranks with a core each: null where there was nothing to measure.
[[nodiscard]] inline nlohmann::ordered_json measured(double value) {
  return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

/// The words that are the same in all rows of a run.
struct run_words {
  std::string type, redop, as, buffers;
  int ranks = 2;
  int root = 0;
};

[[nodiscard]] inline nlohmann::ordered_json json_of(const row& one, const run_words& words) {
  const double algorithm_bandwidth = algbw(one.size.bytes, one.p50_us);
  nlohmann::ordered_json out{
      {"op", name(one.what)},
      {"bytes", one.size.bytes},
      {"count", one.size.count},
      {"type", words.type},
      {"redop", reduces(one.what) ? words.redop : "none"},
      {"in_place", one.in_place},
      {"p50_us", one.p50_us},
      {"p99_us", one.p99_us},
      {"algbw", algorithm_bandwidth},
      {"busbw", algorithm_bandwidth * busbw_factor(one.what, words.ranks)},
      {"wrong", one.wrong ? nlohmann::ordered_json(*one.wrong) : nlohmann::ordered_json(nullptr)},
      {"algorithm", one.algorithm},
      {"state", one.state},
      {"ranks", words.ranks},
      {"as", words.as},
      {"buffers", words.buffers},
      {"samples", one.samples},
      {"rtt_us", measured(one.rtt_us)},
      {"copy_us", one.copy_us ? nlohmann::ordered_json(*one.copy_us) : nlohmann::ordered_json(nullptr)},
      {"peers", nlohmann::ordered_json::object()}};
  for (const auto& [peer, us] : one.peers) out["peers"][peer] = us;
  return out;
}

/// The table of nccl-tests with p99 behind the time, which is the median; one line a size and state.
inline void print_table(const std::vector<row>& rows, const run_words& words, std::FILE* to) {
  op last = op::barrier;
  bool first = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const row& one = rows[i];
    const bool pair = i + 1 < rows.size() && rows[i + 1].in_place && !one.in_place && rows[i + 1].what == one.what &&
                      rows[i + 1].size.bytes == one.size.bytes && rows[i + 1].state == one.state;
    if (first || one.what != last) {
      std::fprintf(to, "# %s, %d rank%s as %s, %s buffers\n", name(one.what), words.ranks, words.ranks == 1 ? "" : "s",
                   words.as.c_str(), words.buffers.c_str());
      std::fprintf(to, "# %10s %11s %7s %6s %5s |%41s |%41s\n", "", "", "", "", "", "out of place   ", "in place   ");
      std::fprintf(to, "# %10s %11s %7s %6s %5s | %9s %9s %7s %7s %5s | %9s %9s %7s %7s %5s | %s\n", "size", "count",
                   "type", "redop", "root", "time p50", "p99", "algbw", "busbw", "wrong", "time p50", "p99", "algbw",
                   "busbw", "wrong", "state, beside");
      std::fprintf(to, "# %10s %11s %7s %6s %5s | %9s %9s %7s %7s %5s | %9s %9s %7s %7s %5s |\n", "(B)", "(elements)",
                   "", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
      last = one.what;
      first = false;
    }
    std::fprintf(to, "  %10zu %11zu %7s %6s %5d |", one.size.bytes, one.size.count, words.type.c_str(),
                 reduces(one.what) ? words.redop.c_str() : "none", has_root(one.what) ? words.root : -1);
    for (int form = 0; form < 2; ++form) {
      const row* const side = form == (one.in_place ? 1 : 0) ? &one : pair ? &rows[i + 1] : nullptr;
      if (side == nullptr) {
        std::fprintf(to, " %9s %9s %7s %7s %5s |", "-", "-", "-", "-", "-");
        continue;
      }
      const double bandwidth = algbw(side->size.bytes, side->p50_us);
      std::fprintf(to, " %9.3f %9.3f %7.2f %7.2f %5s |", side->p50_us, side->p99_us, bandwidth,
                   bandwidth * busbw_factor(one.what, words.ranks),
                   side->wrong ? std::to_string(*side->wrong).c_str() : "N/A");
    }
    std::fprintf(to, " %s", one.state.c_str());
    if (one.copy_us) std::fprintf(to, ", copy %.3f", *one.copy_us);
    const row& shown = pair ? rows[i + 1] : one;
    for (const auto& [peer, us] : one.peers) {
      std::fprintf(to, ", %s %.3f", peer.c_str(), us);
      if (pair && shown.peers.contains(peer)) std::fprintf(to, "/%.3f", shown.peers.at(peer));
      if (peer == "twin") std::fprintf(to, " (%s)", one.baseline_setting.c_str());
    }
    std::fprintf(to, "\n");
    if (pair) ++i;
  }
}

}  // namespace bench
