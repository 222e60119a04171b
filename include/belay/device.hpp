// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the device room: memory and streams of one device.
#pragma once

#include "belay/device/arena.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/tier.hpp"
