// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The door to kernels whose index is a row: moving rows about (counts, offsets, gather, scatter),
// softmax, RMS norm and rotary positions. The loop inside a row is the one that vectorises.
#pragma once

#include "belay/kernel/rows/permute.hpp"
#include "belay/kernel/rows/rms_norm.hpp"
#include "belay/kernel/rows/rotary.hpp"
#include "belay/kernel/rows/softmax.hpp"
