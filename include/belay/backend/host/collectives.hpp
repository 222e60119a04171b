// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives among ranks that can read and write each other's memory: meet, move, part. What one rank
// stores no other rank touches until all have parted, which is why the operations may be in place.
#pragma once

#include "belay/backend/host/collectives/all_to_all.hpp"          // IWYU pragma: export
#include "belay/backend/host/collectives/collective_context.hpp"  // IWYU pragma: export
#include "belay/backend/host/collectives/moving.hpp"              // IWYU pragma: export
#include "belay/backend/host/collectives/reducing.hpp"            // IWYU pragma: export
