// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives among ranks that read and write each other's memory: enter, move, exit. What one rank stores no other
// rank touches until all have exited, which is why the operations may be in place.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include "belay/backend/host/collectives/all_gather.hpp"      // IWYU pragma: export
#include "belay/backend/host/collectives/all_reduce.hpp"      // IWYU pragma: export
#include "belay/backend/host/collectives/all_to_all.hpp"      // IWYU pragma: export
#include "belay/backend/host/collectives/barrier.hpp"         // IWYU pragma: export
#include "belay/backend/host/collectives/broadcast.hpp"       // IWYU pragma: export
#include "belay/backend/host/collectives/gather.hpp"          // IWYU pragma: export
#include "belay/backend/host/collectives/reduce.hpp"          // IWYU pragma: export
#include "belay/backend/host/collectives/reduce_scatter.hpp"  // IWYU pragma: export
#include "belay/backend/host/collectives/scatter.hpp"         // IWYU pragma: export
