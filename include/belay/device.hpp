// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Door of the device room: memory and streams of one device.
#pragma once

#include "belay/device/arena.hpp"             // IWYU pragma: export
#include "belay/device/available_memory.hpp"  // IWYU pragma: export
#include "belay/device/copy_stream.hpp"       // IWYU pragma: export
#include "belay/device/findings.hpp"          // IWYU pragma: export
#include "belay/device/host_access.hpp"       // IWYU pragma: export
#include "belay/device/host_stream.hpp"       // IWYU pragma: export
#include "belay/device/kit.hpp"               // IWYU pragma: export
#include "belay/device/memory.hpp"            // IWYU pragma: export
#include "belay/device/offset_allocator.hpp"  // IWYU pragma: export
#include "belay/device/queue_stream.hpp"      // IWYU pragma: export
#include "belay/device/stream.hpp"            // IWYU pragma: export
#include "belay/device/stream_arbiter.hpp"    // IWYU pragma: export
#include "belay/device/stream_event.hpp"      // IWYU pragma: export
#include "belay/device/stream_policy.hpp"     // IWYU pragma: export
#include "belay/device/stream_watch.hpp"      // IWYU pragma: export
#include "belay/device/tier.hpp"              // IWYU pragma: export
