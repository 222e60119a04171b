// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The CUDA backend's door: memory, streams, kit and a world of ranks over a `device_api`. The real one is
// belay/backend/cuda/runtime_api.cuh, for nvcc.
#pragma once

#include "belay/backend/cuda/device.hpp"      // IWYU pragma: export
#include "belay/backend/cuda/device_api.hpp"  // IWYU pragma: export
#include "belay/backend/cuda/graph.hpp"       // IWYU pragma: export
#include "belay/backend/cuda/group.hpp"       // IWYU pragma: export
#include "belay/backend/cuda/kit.hpp"         // IWYU pragma: export
#include "belay/backend/cuda/memory.hpp"      // IWYU pragma: export
#include "belay/backend/cuda/stream.hpp"      // IWYU pragma: export
#include "belay/backend/cuda/world.hpp"       // IWYU pragma: export
