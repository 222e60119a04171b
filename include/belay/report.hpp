// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the report room, what people look at: the line of a step for a reader and for a program, the table of a plan,
// memory over time as a picture, a pipeline schedule as a chart, a trace of what every rank did, events for
// TensorBoard, and a page of a whole run. All of it but the chart takes plain numbers, so that a trainer with steps of
// its own can use it too.
#pragma once

#include "belay/report/event_file.hpp"      // IWYU pragma: export
#include "belay/report/json_line.hpp"       // IWYU pragma: export
#include "belay/report/memory_picture.hpp"  // IWYU pragma: export
#include "belay/report/output.hpp"          // IWYU pragma: export
#include "belay/report/page.hpp"            // IWYU pragma: export
#include "belay/report/schedule_chart.hpp"  // IWYU pragma: export
#include "belay/report/step_events.hpp"     // IWYU pragma: export
#include "belay/report/step_line.hpp"       // IWYU pragma: export
#include "belay/report/trace.hpp"           // IWYU pragma: export
