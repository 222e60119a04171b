// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A schedule that the library has not: all forwards and then all backwards, of two chunks in a V. The first rank has
// the batch and the loss, and what the last rank's first stage puts out stays there.
#pragma once

#include <string_view>

#include "belay/parallel/schedule.hpp"

namespace test {

struct breadth_first_in_v {
  static constexpr std::string_view name = "bfs in v";
  [[nodiscard]] static constexpr belay::schedule::placement placed() { return {2, belay::schedule::stage_in_v}; }
  template <class Out>
  constexpr void operator()(Out& out, belay::schedule::rank_position at) const {
    belay::schedule::breadth_first_rule{2}(out, at);
  }
};

}  // namespace test
