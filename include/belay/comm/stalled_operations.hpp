// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations that ranks of a stopped world wait in: which ranks are inside, and which of the group never entered.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstdint>
#include <vector>

#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// An operation that ranks are in, and do not come out of.
struct open_operation {
  lane which = lane::caller;
  flight_record call;          // as the first of those ranks recorded it
  std::vector<int> inside;     // ranks of the world
  std::vector<int> missing;    // of its group, that never entered it
  std::uint64_t since_us = 0;  // by the steady clock, the longest wait; 0 where nobody sleeps
};

/// The last operation in that group that is of the same kind as `call` (exchanges are counted on
/// their own); an empty record where there is none.
[[nodiscard]] BELAY_DECL flight_record last_like(const flight_history& from, const flight_record& call);

/// All operations that ranks are in, in the order of their groups' numbers.
[[nodiscard]] BELAY_DECL std::vector<open_operation> open_operations(const flight_snapshot& world);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/stalled_operations.ipp"  // IWYU pragma: export
#endif
