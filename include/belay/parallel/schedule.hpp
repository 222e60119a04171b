// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Pipeline schedules. A schedule is a table: for every rank the ordered list of its actions, computes of its stages and
// exchanges with other ranks. Tables are values without ranks or threads. The same code makes them at compile time or
// at start-up. They are proven (parallel/proof.hpp), played against a clock, written and read as CSV, and drawn
// (report/schedule_chart.hpp). The table that was proven is the one that parallel/pipeline.hpp executes.
//
//   constexpr auto table = belay::schedule::one_f_one_b<4, 16>();  // 4 stages, 16 micro-batches
//   static_assert(belay::proof(table).complete);
//   const auto same = belay::schedule::one_f_one_b(4, 16);         // at run time
//   const auto read = belay::schedule::from_csv(belay::schedule::to_csv(same));
#pragma once

#include "belay/parallel/schedule/catalogue.hpp"      // IWYU pragma: export
#include "belay/parallel/schedule/compute_lists.hpp"  // IWYU pragma: export
#include "belay/parallel/schedule/csv.hpp"            // IWYU pragma: export
#include "belay/parallel/schedule/exchanges.hpp"      // IWYU pragma: export
#include "belay/parallel/schedule/pairs.hpp"          // IWYU pragma: export
#include "belay/parallel/schedule/planner.hpp"        // IWYU pragma: export
#include "belay/parallel/schedule/play.hpp"           // IWYU pragma: export
#include "belay/parallel/schedule/rules.hpp"          // IWYU pragma: export
#include "belay/parallel/schedule/table.hpp"          // IWYU pragma: export
#include "belay/parallel/schedule/timeline.hpp"       // IWYU pragma: export
#include "belay/parallel/schedule/v_patterns.hpp"     // IWYU pragma: export
#include "belay/parallel/schedule/zero_bubble.hpp"    // IWYU pragma: export
