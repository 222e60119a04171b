// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All rules of schedules, for tests of each.
#pragma once

#include <cstddef>
#include <string>

#include "belay/parallel/schedule.hpp"

namespace test {

/// Calls `see(rule, name)` for each rule, those with a number of chunks for each from 1 to 4.
template <class See>
void for_each_rule(const See& see) {
  namespace schedule = belay::schedule;
  see(schedule::gpipe_rule{}, "gpipe");
  see(schedule::one_f_one_b_rule{}, "1f1b");
  for (std::size_t chunks = 1; chunks <= 4; ++chunks) {
    see(schedule::interleaved_rule{chunks}, "interleaved:" + std::to_string(chunks));
    see(schedule::breadth_first_rule{chunks}, "bfs:" + std::to_string(chunks));
    see(schedule::interleaved_zero_bubble_rule{chunks}, "interleaved-zb:" + std::to_string(chunks));
  }
  see(schedule::zb_h1_rule{}, "zb-h1");
  see(schedule::zb_h2_rule{}, "zb-h2");
  see(schedule::zb_v_rule{}, "zb-v");
  see(schedule::dualpipe_v_rule{}, "dualpipe-v");
  see(schedule::dualpipe_v_atomic_rule{}, "dualpipe-v:atomic");
  see(schedule::v_half_rule{}, "v-half");
  see(schedule::v_min_rule{}, "v-min");
}

}  // namespace test
