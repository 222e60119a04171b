// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communication stream of this backend, compiled once with separate compilation.
#pragma once

#include "belay/backend/host/group.hpp"

namespace belay::inline BELAY_ABI {

template class async_stream<host::world_status>;

}  // namespace belay::inline BELAY_ABI
