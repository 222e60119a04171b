// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A flight as text for people.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "belay/comm/flight_file.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/process.hpp"
#include "tools/belay_fr/alignment.hpp"
#include "tools/belay_fr/flight.hpp"
#include "tools/text_table.hpp"

namespace belay_fr {

using belay::duration_text;
using belay::printable;
using tools::text_table;

[[nodiscard]] inline std::string group_text(std::uint32_t group) {
  return group == 0 ? "world" : "group " + std::to_string(group);
}

/// How far an operation came.
[[nodiscard]] inline const char* name_of(const flight_entry& of) {
  return of.heard ? "SEEN" : of.finished ? "done" : "IN";
}

/// Verdict, cause and job.
[[nodiscard]] inline std::string head_text(const flight& of) {
  std::string out = printable(of.verdict) + "\n\ncause:  " + printable(of.cause.kind);
  for (std::size_t i = 0; i < of.cause.culprits.size(); ++i) {
    out += (i == 0 ? " by rank " : ", ") + std::to_string(of.cause.culprits[i]);
  }
  if (of.cause.signal > 0) out += ", " + belay::signal_name(of.cause.signal);
  if (of.cause.exit_code >= 0) out += ", exit code " + std::to_string(of.cause.exit_code);
  if (!of.cause.there.empty()) out += ", at " + printable(of.cause.there);
  if (!of.cause.message.empty()) out += "\n        " + printable(of.cause.message);
  out += "\njob:    " + std::to_string(of.job) + ", " + std::to_string(of.ranks.size());
  out += of.ranks.size() == 1 ? " rank" : " ranks";
  out += (of.transport == "mpi" ? " under " : " as ") + printable(of.transport);
  if (of.told_by >= 0 && of.ranks.size() > 1) {
    out += ", told by rank " + std::to_string(of.told_by) + ", with what it heard of the others";
  }
  if (of.epoch > 0) out += ", after " + std::to_string(of.epoch) + " times that others were lost";
  return out + "\n";
}

/// A line a rank, and another for operations it had started.
[[nodiscard]] inline std::string ranks_table(const flight& of) {
  text_table table;
  table.add({"rank", "pid", "state", "last operation", "group", "bytes", "at", "waited"});
  for (const rank_record& rank : of.ranks) {
    const std::string pid = rank.pid == 0 ? "thread" : std::to_string(rank.pid);
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const auto& entries = rank.lanes[lane].entries;
      if (entries.empty()) {
        if (lane == 0) table.add({std::to_string(rank.rank), pid, printable(rank.state), "none"});
        continue;
      }
      const flight_entry& last = entries.back();
      const char* const how = last.heard ? "SEEN IN " : last.finished ? "after " : "IN ";
      const std::string what =
          std::string(how) + (lane == 1 ? "started " : "") + printable(last.op) + " #" + std::to_string(last.number);
      table.add({std::to_string(rank.rank), lane == 0 ? pid : "", lane == 0 ? printable(rank.state) : "", what,
                 group_text(last.group), std::to_string(last.bytes), printable(last.site),
                 duration_text(last.waited_us)});
    }
  }
  return table.text();
}

/// The last `count` operations of each rank, eight ranks beside each other.
class side_by_side {
 public:
  side_by_side(const flight& of, std::size_t count) : flight_(&of), count_(count) {}

  [[nodiscard]] std::string text() const {
    std::string out;
    for (std::size_t lane = 0; lane < 2; ++lane) {
      const std::vector<row> rows = alignment(*flight_, lane).last(count_);
      if (rows.empty()) continue;
      out += lane == 0 ? "\noperations called" : "\noperations started";
      out += ", the last " + std::to_string(count_) + " of each rank:\n";
      for (std::size_t first = 0; first < flight_->ranks.size(); first += 8) out += block(rows, first);
    }
    return out;
  }

 private:
  [[nodiscard]] std::string block(const std::vector<row>& rows, std::size_t first) const {
    const std::size_t end = std::min(first + 8, flight_->ranks.size());
    text_table table;
    std::vector<std::string> title{"group", "operation", "at"};
    for (std::size_t rank = first; rank < end; ++rank) title.push_back("rank " + std::to_string(rank));
    table.add(std::move(title));
    for (const row& each : rows) {
      std::set<std::string> ops, sites;
      std::set<std::uint64_t> sizes;
      for (const cell& here : each.by_rank) {
        if (here.what == nullptr) continue;
        ops.insert(here.what->op);
        sites.insert(here.what->site);
        sizes.insert(here.what->bytes);
      }
      const std::string what =
          (ops.size() == 1 ? printable(*ops.begin()) : "DIFFERS") + " #" + std::to_string(each.key.number);
      const std::string at = sites.size() == 1 ? printable(*sites.begin()) : std::to_string(sites.size()) + " places";
      std::vector<std::string> cells{group_text(each.key.group), what, at};
      for (std::size_t rank = first; rank < end; ++rank) {
        cells.push_back(cell_text(each.by_rank[rank], ops.size() > 1, sizes.size() > 1));
      }
      table.add(std::move(cells));
    }
    return table.text();
  }

  // Says what the row's head could not say for all.
  [[nodiscard]] static std::string cell_text(const cell& here, bool with_op, bool with_bytes) {
    switch (here.how) {
      case presence::outside: return "";
      case presence::never: return "NEVER CAME";
      case presence::not_kept: return "not kept";
      case presence::finished:
      case presence::inside:
      case presence::heard: break;
    }
    std::string out = name_of(*here.what);
    if (with_op) out += " " + printable(here.what->op);
    if (with_bytes) out += " " + std::to_string(here.what->bytes) + " B";
    const std::string waited = duration_text(here.what->waited_us);
    return waited.empty() ? out : out + " " + waited;
  }

  const flight* flight_;
  std::size_t count_;
};

/// The last `count` operations of one rank, each with all that is known of it.
[[nodiscard]] inline std::string rank_table(const flight& of, std::size_t rank, std::size_t count) {
  std::string out;
  for (std::size_t lane = 0; lane < 2; ++lane) {
    const history& from = of.ranks[rank].lanes[lane];
    if (from.entries.empty()) continue;
    text_table table;
    table.add({"n", "group", "operation", "bytes", "at", "", "waited"});
    for (std::size_t i = from.entries.size() - std::min(count, from.entries.size()); i < from.entries.size(); ++i) {
      const flight_entry& each = from.entries[i];
      table.add({std::to_string(each.turn), group_text(each.group),
                 printable(each.op) + " #" + std::to_string(each.number), std::to_string(each.bytes),
                 printable(each.site), name_of(each), duration_text(each.waited_us)});
    }
    out += std::string(lane == 0 ? "\noperations that rank " : "\noperations started that rank ") +
           std::to_string(rank) + (lane == 0 ? " called" : " ran") + " (" + std::to_string(from.entries.size()) +
           " kept, " + std::to_string(from.dropped) + " older ones not):\n" + table.text();
  }
  return out.empty() ? "\nrank " + std::to_string(rank) + " called no operation\n" : out;
}

}  // namespace belay_fr
