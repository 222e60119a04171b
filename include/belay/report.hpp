// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What people look at: the line of a step for a reader and for a program, the table of a plan, memory over
// time as a picture, what every rank did when as a trace. All of it takes plain numbers, so that a trainer
// with other ideas about its steps can use it too.
#pragma once

#include "belay/report/json_line.hpp"
#include "belay/report/memory_picture.hpp"
#include "belay/report/output.hpp"
#include "belay/report/plan_table.hpp"
#include "belay/report/step_line.hpp"
#include "belay/report/trace.hpp"
