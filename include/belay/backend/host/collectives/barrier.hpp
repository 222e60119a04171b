// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The barrier: a flag line without a payload.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

inline void barrier(collective_context call, const where& at) {
  call.endpoint->eager_round(algorithm::flag_line, {operation::barrier, reduction::none, {}, -1, 0, 0}, nullptr, 0,
                             call.limit, at);
}

inline void run_collective(operation_tag<operation::barrier>, const auto&... all) { barrier(all...); }

}  // namespace host
}  // namespace belay::inline BELAY_ABI
