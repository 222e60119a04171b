// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the kernel room: arithmetic as functors and row functions, for host and device alike. Nothing in it knows a
// device, a stream or a rank.
#pragma once

#include "belay/kernel/chunked_ranges.hpp"  // IWYU pragma: export
#include "belay/kernel/elementwise.hpp"     // IWYU pragma: export
#include "belay/kernel/findings.hpp"        // IWYU pragma: export
#include "belay/kernel/for_each.hpp"        // IWYU pragma: export
#include "belay/kernel/losses.hpp"          // IWYU pragma: export
#include "belay/kernel/math.hpp"            // IWYU pragma: export
#include "belay/kernel/non_temporal.hpp"    // IWYU pragma: export
#include "belay/kernel/optimizer.hpp"       // IWYU pragma: export
#include "belay/kernel/product.hpp"         // IWYU pragma: export
#include "belay/kernel/quantize.hpp"        // IWYU pragma: export
#include "belay/kernel/reduce.hpp"          // IWYU pragma: export
#include "belay/kernel/rows.hpp"            // IWYU pragma: export
#include "belay/kernel/team.hpp"            // IWYU pragma: export
