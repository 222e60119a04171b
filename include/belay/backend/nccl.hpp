// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend's door, over an `nccl_api`. The real one is belay/backend/nccl/runtime_nccl.cuh, for nvcc.
#pragma once

#include "belay/backend/nccl/group.hpp"     // IWYU pragma: export
#include "belay/backend/nccl/nccl_api.hpp"  // IWYU pragma: export
#include "belay/backend/nccl/rank.hpp"      // IWYU pragma: export
#include "belay/backend/nccl/window.hpp"    // IWYU pragma: export
#include "belay/backend/nccl/world.hpp"     // IWYU pragma: export
