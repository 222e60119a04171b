// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels whose index is a row, done by a team: permutations of rows (counts, offsets, gather, scatter), softmax, RMS
// norm, rotary positions, attention and cross-entropy. The loop inside a row is the one that vectorises.
//
//   const belay::kernel::rms_norm_rows<float> norm{in, weight, out, inverse, width, 1e-5F};
//   belay::kernel::for_each_row(rows, norm);
//   belay::kernel::for_each_row(rows, belay::kernel::causal_softmax_rows<float>{scores, scores, length});
#pragma once

#include "belay/kernel/rows/indexed.hpp"   // IWYU pragma: export
#include "belay/kernel/rows/rms_norm.hpp"  // IWYU pragma: export
#include "belay/kernel/rows/rotary.hpp"    // IWYU pragma: export
#include "belay/kernel/rows/softmax.hpp"   // IWYU pragma: export
#include "belay/kernel/rows/swiglu.hpp"    // IWYU pragma: export
