// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One sentence about why a world stopped: which rank never entered which operation, what it does instead, and which
// ranks wait for it. The first cause says what one rank saw; the recorders say what all did: the operations that ranks
// are inside, and which of the group never entered.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstdint>
#include <string>
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

/// "12 us", "3.4 ms", "0.21 s"; nothing for 0.
[[nodiscard]] BELAY_DECL std::string duration_text(std::uint64_t us);

/// "all_gather #118", "started all_gather #118 of group 2"; exchanges are counted by each rank for itself.
[[nodiscard]] BELAY_DECL std::string operation_text(const flight_record& call, lane which);

/// Why the world stopped, in one sentence; which ranks wait where when it has not.
[[nodiscard]] BELAY_DECL std::string verdict(const flight_snapshot& world);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/flight_diagnosis.ipp"  // IWYU pragma: export
#endif
