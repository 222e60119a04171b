// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The front door: every public header, but no backend and nothing of report_page.hpp. A backend is a type, chosen on
// one line of the program that includes it: #include "belay/backend/host.hpp".
#pragma once

#include "belay/comm.hpp"
#include "belay/core.hpp"
#include "belay/device.hpp"
#include "belay/kernel.hpp"
#include "belay/parallel.hpp"
#include "belay/report.hpp"
#include "belay/step.hpp"
#include "belay/train.hpp"
#include "belay/version.hpp"
