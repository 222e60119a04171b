// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The other door of the report room, to what is drawn: a page of a whole run, memory over time as a picture, and a
// pipeline schedule as a chart. Neither belay.hpp nor a header of another room has any of it, because most programs
// draw nothing; the CMake target is belay::report_page.
#pragma once

#include "belay/report/memory_picture.hpp"  // IWYU pragma: export
#include "belay/report/page.hpp"            // IWYU pragma: export
#include "belay/report/schedule_chart.hpp"  // IWYU pragma: export
