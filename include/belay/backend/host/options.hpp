// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a world of ranks is told when it is made, and the shape of the memory that follows from it.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/group_directory.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/backend/host/tuning/explain.hpp"
#include "belay/comm/checked_timeout.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/core_set.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether each rank stays on one core.
enum class pinning { none, one_core_each };

/// Whether a world times the copies of this machine before the ranks' bodies start: once per process, for at most 60 ms
/// and with 8 MiB. `skip`: all copies are libc's until the on-line tuner finds better ones.
enum class calibration { measure, skip };

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

  /// `spin` as a number of looks on this machine; found by whoever makes the world.
  int spins = 0;
};

/// BELAY_TIMEOUT in seconds, or 600. Throws input_error.
[[nodiscard]] inline double timeout_of_environment() {
  const char* text = std::getenv("BELAY_TIMEOUT");
  if (text == nullptr || *text == '\0') return 600;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds > 0) || !std::isfinite(seconds)) {
    throw input_error("BELAY_TIMEOUT=" + std::string(text) + ": expected seconds, more than 0");
  }
  return seconds;
}

/// The options with nothing left open. Throws usage_error, or input_error if BELAY_TIMEOUT makes no sense.
[[nodiscard]] inline world_options checked_options(world_options options, where at) {
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

/// What the ranks of such a world share.
[[nodiscard]] inline control_shape control_shape_for(int ranks, address_space space, const world_options& options) {
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

/// Publishes the calibration of this machine in a fresh control block, before any rank's body; prints the rules where
/// BELAY_TUNING is `print`. A world of one rank copies for nobody and is not calibrated.
inline void calibrate(const control_block& fresh, const world_options& options) {
  const int ranks = fresh.shape().ranks;
  if (ranks < 2) return;
  if (options.calibration == calibration::measure) {
    static const copy_table measured = calibrate_copies();  // a process measures its machine once
    fresh.header().copies = measured;
  }
  if (fresh.shape().epoch == 0) print_rules(ranks, options.algorithm, fresh.header().copies);
}

/// Fresh zeroed pages of this process, of which only those that are touched cost memory.
class anonymous_memory {
 public:
  explicit anonymous_memory(std::size_t bytes, where at = where::current()) : bytes_(bytes) {
    void* const first =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (first == MAP_FAILED) throw budget_error("address space", bytes, 0, at);
    first_ = static_cast<std::byte*>(first);
  }
  anonymous_memory(const anonymous_memory&) = delete;
  anonymous_memory& operator=(const anonymous_memory&) = delete;
  ~anonymous_memory() { ::munmap(first_, bytes_); }

  [[nodiscard]] std::byte* data() const noexcept { return first_; }

 private:
  std::byte* first_ = nullptr;
  std::size_t bytes_;
};

/// Keeps the calling thread on the `number`-th core that it may run on, round and round.
inline void pin_to_core(int number) noexcept {
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
