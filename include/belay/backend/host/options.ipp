// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Checked options, and the shape of the shared memory that follows from them.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <cstdint>
#include <string>

#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL world_options checked_options(world_options options, where at) {
  if (options.timeout.count() == 0) options.timeout = std::chrono::duration<double>(timeout_of_environment());
  options.timeout = checked_timeout(options.timeout, at);
  options.stall_limit = checked_timeout(options.stall_limit, at);
  if (options.staging_bytes < 64 * 1024) throw usage_error("a rank's staging is 64 KiB or more", at);
  const checked_size all_staging =
      checked_size(options.staging_bytes) * lane_count * std::size_t{control_block::most_ranks};
  static_cast<void>(all_staging.value(
      [&] { return "staging_bytes: " + std::to_string(options.staging_bytes) + " for each lane of each rank are"; },
      at));
  options.staging_bytes = options.staging_bytes / 8192 * 8192;  // two halves of whole pages
  if (options.algorithm == algorithm::automatic) options.algorithm = algorithm_of_environment();
  if (options.spins == 0) options.spins = spins_in(options.spin);
  static_cast<void>(prints_tuning());  // refuses what BELAY_TUNING cannot be
  return options;
}

BELAY_DECL control_shape control_shape_for(int ranks, address_space space, const world_options& options) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  control_shape out;
  out.ranks = ranks;
  out.space = space;
  out.staging_bytes =
      space == address_space::several || options.algorithm == algorithm::staged ? options.staging_bytes : 0;
  out.algorithm = static_cast<std::uint32_t>(options.algorithm);
  out.group_bytes = (space == address_space::several ? 1 : 8) * group_directory::room_for(ranks);
  out.timeout_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(options.timeout).count();
  out.stall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(options.stall_limit).count();
  out.job = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
  return out;
}

BELAY_DECL void calibrate(const control_block& fresh, const world_options& options) {
  if (fresh.shape().ranks < 2) return;
  if (options.calibration == calibration::measure) {
    static const copy_table measured = calibrate_copies();  // a process measures its machine once
    fresh.header().copies = measured;
  }
}

BELAY_DECL void pin_to_core(int number) noexcept {
  const core_set cores = core_set::allowed();
  int skip = number % cores.count();
  for (std::size_t core = 0; core < CPU_SETSIZE && core < 64 * core_set::words; ++core) {
    if ((cores.bits[core / 64] >> (core % 64) & 1) == 0 || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
    return;
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
