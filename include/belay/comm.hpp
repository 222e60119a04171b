// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communication room's door: what a group of ranks can do, meshes of them, and memory they share.
#pragma once

#include "belay/comm/axis.hpp"              // IWYU pragma: export
#include "belay/comm/collective.hpp"        // IWYU pragma: export
#include "belay/comm/communicator.hpp"      // IWYU pragma: export
#include "belay/comm/device_group.hpp"      // IWYU pragma: export
#include "belay/comm/fingerprint.hpp"       // IWYU pragma: export
#include "belay/comm/flight_recorder.hpp"   // IWYU pragma: export
#include "belay/comm/group.hpp"             // IWYU pragma: export
#include "belay/comm/group_interface.hpp"   // IWYU pragma: export
#include "belay/comm/launcher.hpp"          // IWYU pragma: export
#include "belay/comm/mesh.hpp"              // IWYU pragma: export
#include "belay/comm/op_call.hpp"           // IWYU pragma: export
#include "belay/comm/p2p.hpp"               // IWYU pragma: export
#include "belay/comm/pending.hpp"           // IWYU pragma: export
#include "belay/comm/rank.hpp"              // IWYU pragma: export
#include "belay/comm/reduction.hpp"         // IWYU pragma: export
#include "belay/comm/rehearsal.hpp"         // IWYU pragma: export
#include "belay/comm/start_order.hpp"       // IWYU pragma: export
#include "belay/comm/symmetric.hpp"         // IWYU pragma: export
#include "belay/comm/symmetric_region.hpp"  // IWYU pragma: export
