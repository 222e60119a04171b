// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the device room: memory and streams of one device.
#pragma once

#include "belay/device/arena.hpp"             // IWYU pragma: export
#include "belay/device/kit.hpp"               // IWYU pragma: export
#include "belay/device/memory.hpp"            // IWYU pragma: export
#include "belay/device/offset_allocator.hpp"  // IWYU pragma: export
#include "belay/device/stream.hpp"            // IWYU pragma: export
#include "belay/device/tier.hpp"              // IWYU pragma: export
