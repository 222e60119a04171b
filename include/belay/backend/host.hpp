// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The host backend's door: ranks as threads of this process, or as processes that a launcher has started. A program
// that forks its ranks itself includes belay/backend/host/processes.hpp.
#pragma once

#include "belay/backend/host/group.hpp"  // IWYU pragma: export
#include "belay/backend/host/rank.hpp"   // IWYU pragma: export
#include "belay/backend/host/world.hpp"  // IWYU pragma: export
#include "belay/comm/collective.hpp"     // IWYU pragma: export
