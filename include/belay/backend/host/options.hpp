// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a world of ranks is told when it is made.
//
//   belay::host::world_options options;
//   options.timeout = std::chrono::seconds(30);
//   options.pin = belay::host::pinning::one_core_each;
//   belay::host::world(4, options).run(train);
#pragma once

#include <chrono>
#include <cstddef>

#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether each rank stays on one core.
enum class pinning { none, one_core_each };

/// Whether a world times the copies of this machine before the ranks' bodies start: once per process, for at most 60 ms
/// and with 8 MiB. `skip`: all copies are libc's until the on-line tuner finds better ones.
enum class calibration { measure, skip };

/// Options of `world`, `processes` and `launched_world`; each has a default.
struct world_options {
  /// How long a rank waits for its peers; zero: BELAY_TIMEOUT of the environment in seconds, else 600 s.
  std::chrono::duration<double> timeout{0};
  pinning pin = pinning::none;
  /// How long a peer's process may be stopped before that is an error.
  std::chrono::duration<double> stall_limit{30};
  /// How long a wait looks before it sleeps, where each rank has a core.
  std::chrono::nanoseconds spin{20'000};
  /// How the bytes of collectives go; automatic: BELAY_ALGORITHM of the environment, else by size and machine.
  host::algorithm algorithm = host::algorithm::automatic;
  /// Processes: what each rank and lane stages of buffers that its peers cannot see.
  std::size_t staging_bytes = 512 * 1024;
  host::calibration calibration = host::calibration::measure;
  /// By which the ranks measure how long they wait; null: the machine's clock. It outlives the world's groups. Ranks
  /// that are processes have a copy each, but for what is in memory that they share.
  const time_source* clock = nullptr;

  /// `spin` as a number of looks on this machine; found when a world is made.
  int spins = 0;
};

/// The options with each default resolved. Throws usage_error, or input_error if BELAY_TIMEOUT makes no sense.
[[nodiscard]] BELAY_DECL world_options checked_options(world_options options, where at);

/// The control block of such a world.
[[nodiscard]] BELAY_DECL control_shape control_shape_for(int ranks, address_space space, const world_options& options);

/// Publishes the calibration of this machine in a fresh control block, before any rank's body. A world of one rank
/// copies for no other and is not calibrated.
BELAY_DECL void calibrate(const control_block& fresh, const world_options& options);

/// Keeps the calling thread on the `number`-th core that it may run on, round and round.
BELAY_DECL void pin_to_core(int number) noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/options.ipp"  // IWYU pragma: export
#endif
