// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door to pipeline schedules. A schedule is a table: for every stage the ordered list of what it does,
// computes and exchanges with its neighbours. Tables are values without ranks or threads: they are made at
// compile time or at start-up by the same code, proven (parallel/proof.hpp), played against a clock, written,
// read and drawn; the table that was proven is the one that parallel/pipeline.hpp executes.
#pragma once

#include "belay/parallel/schedule/action.hpp"    // IWYU pragma: export
#include "belay/parallel/schedule/csv.hpp"       // IWYU pragma: export
#include "belay/parallel/schedule/rules.hpp"     // IWYU pragma: export
#include "belay/parallel/schedule/table.hpp"     // IWYU pragma: export
#include "belay/parallel/schedule/timeline.hpp"  // IWYU pragma: export
