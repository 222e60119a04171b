// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the report room, what people and programs read of a run: the line of a step for both, files of text, a trace
// of what every rank did, and events for TensorBoard. All of it takes plain numbers, so that a trainer with steps of
// its own can use it too. What is drawn, the page of a run and pictures, is behind report_page.hpp.
#pragma once

#include "belay/report/event_file.hpp"   // IWYU pragma: export
#include "belay/report/output.hpp"       // IWYU pragma: export
#include "belay/report/step_line.hpp"    // IWYU pragma: export
#include "belay/report/text_buffer.hpp"  // IWYU pragma: export
#include "belay/report/trace.hpp"        // IWYU pragma: export
