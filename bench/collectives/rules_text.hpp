// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The static rules as a table: which algorithm an operation of a size takes before a group has tuned anything, and how
// copies of a size touch memory on this machine.
#pragma once

#include <cstddef>
#include <string>

#include "belay/backend/host/copy/calibration.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/fingerprint.hpp"
#include "collectives/size.hpp"

namespace bench {

/// `text` and spaces up to `columns`.
[[nodiscard]] inline std::string column(std::string text, std::size_t columns) {
  text.resize(text.size() < columns ? columns : text.size() + 1, ' ');
  return text;
}

/// A table of the rules for a world of `ranks` ranks: the algorithm of each operation and size, for buffers that peers
/// have mapped and for others, and the memory access of each size of copy.
[[nodiscard]] inline std::string rules_text(int ranks, belay::host::algorithm forced,
                                            const belay::host::copy_table& copies) {
  using belay::operation;
  using belay::host::algorithm, belay::host::eager_traffic;
  constexpr std::size_t sizes[] = {8,         56,         256,         1024,        2048,    16 * 1024,
                                   64 * 1024, 256 * 1024, 1024 * 1024, 4096 * 1024, 64 << 20};
  struct ruled_operation {
    operation what;
    eager_traffic traffic;
    bool parts;  // what a rank gives is its part of the larger buffer
  };
  constexpr ruled_operation rows[] = {{operation::all_reduce, eager_traffic::all, false},
                                      {operation::reduce_scatter, eager_traffic::all_in_parts, false},
                                      {operation::all_gather, eager_traffic::all, true},
                                      {operation::broadcast, eager_traffic::root, false},
                                      {operation::reduce, eager_traffic::root, false},
                                      {operation::gather, eager_traffic::root, true},
                                      {operation::scatter, eager_traffic::root, false}};
  std::string out = "rules for " + std::to_string(ranks) + " ranks";
  if (forced != algorithm::automatic) out += ", BELAY_ALGORITHM=" + std::string(name(forced));
  constexpr std::size_t title = 28, cell = 13;
  out += "\n  " + column("bytes of the whole buffer", title);
  for (const std::size_t bytes : sizes) out += column(size_text(bytes), cell);
  for (const ruled_operation& each : rows) {
    for (const bool mapped : {true, false}) {
      out += "\n  " + column(name(each.what) + std::string(mapped ? ", mapped" : ", not mapped"), title);
      belay::host::selection_input known;
      known.forced = forced;
      known.direct = mapped;
      known.cma_possible = true;
      known.slices = each.what == operation::all_reduce;
      known.root_reduces = each.what == operation::reduce;
      for (const std::size_t bytes : sizes) {
        const std::size_t given = each.parts ? bytes / static_cast<std::size_t>(ranks) : bytes;
        const algorithm eager = belay::host::choose_small(forced, given, 1, ranks, each.traffic);
        out += column(name(eager == algorithm::automatic ? belay::host::choose(known, bytes) : eager), cell);
      }
    }
  }
  out += "\n  " + column("copy of one rank", title);
  for (const std::size_t bytes : sizes) {
    out += column(name(copies.access_of(bytes)), cell);
  }
  return out + "\n";
}

}  // namespace bench
