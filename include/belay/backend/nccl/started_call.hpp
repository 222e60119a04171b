// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One operation of a rank over NCCL, or a launch of a graph that has some, as messages name it.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "belay/comm/abort_cause.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::nccl {

struct started_call {
  call_site site;                             ///< of a graph: of the first operation in it, with the bytes of all
  std::chrono::steady_clock::duration limit;  ///< how long it may take
  std::size_t in_graph = 0;                   ///< how many operations the graph has; 0: it is no launch of one

  /// "all_reduce #3", or "a graph of 7 operations, the first of which is all_reduce #3".
  [[nodiscard]] std::string text() const {
    if (in_graph == 0) return site.text();
    return "a graph of " + std::to_string(in_graph) + (in_graph == 1 ? " operation, " : " operations, the first of ") +
           (in_graph == 1 ? "" : "which is ") + site.text();
  }
};

}  // namespace belay::inline BELAY_ABI::nccl
