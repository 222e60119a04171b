// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the kernel room: arithmetic as functors and row functions, for host and device alike. Nothing in it knows a
// device, a stream or a rank.
#pragma once

#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/optimizer.hpp"
#include "belay/kernel/quantize.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/rows.hpp"
