// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flight recorders of a world of this machine, as a snapshot, a diagnosis and a file. Read from the control block
// alone, so that any process that maps it can also tell a dead rank's part.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <string>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/comm/flight_file.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The whole world; its recorders are read when the snapshot is. `world`'s control block must outlive it.
[[nodiscard]] BELAY_DECL flight_snapshot snapshot_of(const world_status& world);

/// Why the world stopped, in one sentence; which ranks wait where when it has not.
[[nodiscard]] BELAY_DECL std::string verdict(const world_status& world);

/// Writes the recorders, the first cause and the verdict as belay-flight-JOB.json into `folder`, which is made if only
/// it is missing; returns the path. The file appears when it is whole. May be called while ranks run. Throws
/// file_error.
template <files_policy Files = posix_files>
std::string write_flight_file(const world_status& world, const std::string& folder) {
  const flight_snapshot seen = snapshot_of(world);
  return belay::write_flight_file<Files>(seen, folder, belay::verdict(seen));
}

/// Of a world that has stopped: where BELAY_FLIGHT_DIR is set, writes the flight file and prints the verdict with the
/// file's name, or why there is none, as one line to standard error. Call it once.
BELAY_DECL void report_failure(const world_status& world) noexcept;

/// Reports a world that has stopped, as `report_failure` does: for the first of all ranks and their coordinator that
/// calls it. For the others it does nothing.
BELAY_DECL void report_failure_once(const world_status& world) noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/failure/flight_dump.ipp"  // IWYU pragma: export
#endif
