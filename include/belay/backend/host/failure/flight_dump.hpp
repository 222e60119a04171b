// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flight recorders of a world of this machine as a file, written by who holds the shared block.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "belay/backend/host/failure/flight_dump_snapshot.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/comm/flight_diagnosis.hpp"
#include "belay/comm/flight_file.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Why the world stopped, in one sentence; which ranks wait where when it has not.
[[nodiscard]] inline std::string verdict(const world_status& world) { return belay::verdict(scene_of(world)); }

/// Writes the recorders, the first cause and the verdict as belay-flight-JOB.json into `folder`, which is made if only
/// it is missing; returns the path. The file appears when it is whole. May be called while ranks run. Throws
/// file_error.
template <files_policy Files = posix_files>
std::string write_flight_file(const world_status& world, const std::string& folder) {
  const flight_snapshot scene = scene_of(world);
  return belay::write_flight_file<Files>(scene, folder, belay::verdict(scene));
}

/// For who holds the shared block of a world that has stopped: where BELAY_FLIGHT_DIR is set, writes the flight file
/// and prints the verdict with the file's name, or why there is none, as one line to standard error. Call it once.
inline void report_failure(const world_status& world) noexcept {
  try {
    if (const std::optional<std::string> folder = flight_folder()) report_flight(scene_of(world), *folder);
  } catch (...) {  // too little memory for words: the ranks' own errors say it
  }
}

/// The same by whoever of all ranks and their holder comes first.
inline void report_failure_once(const world_status& world) noexcept {
  if (world.shared().header().reported.exchange(1, std::memory_order_relaxed) == 0) report_failure(world);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
