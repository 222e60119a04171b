// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank knows of the status of its world: the first failure, its own last operations and what its peers'
// messages said of theirs. The first cause is kept for good; every later call gets it with its own call site.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "belay/backend/mpi/failure/peer_history.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// A process among those of all machines. Trivially copyable: ranks send it to each other.
/// Which process each rank is. Of those on this machine the kernel says whether they run, are stopped or are gone; of
/// those on others nothing is known.
struct process {
  std::uint64_t machine = 0;  // hash of the boot and of the space of process numbers
  std::int64_t number = 0;
  std::uint64_t start = 0;  // in the kernel's ticks; with it a number is never mistaken for its next user's
  std::int64_t core = -1;   // the only one it may run on; -1: several

  [[nodiscard]] static process self() noexcept {
    process out;
    out.number = ::getpid();
    char text[512];
    fnv1a hash;
    const std::size_t length = read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
    hash.add_text({text, length});
    struct stat space{};
    if (::stat("/proc/self/ns/pid", &space) == 0) hash.add(space.st_ino);
    out.machine = length == 0 ? 0 : hash.value();
    out.start = start_time_of_process(static_cast<pid_t>(out.number));
    if (out.start == 0) out.machine = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1) {
      for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &cores)) out.core = static_cast<std::int64_t>(core);
      }
    }
    return out;
  }

  /// Its state, where it runs on the machine of `here`.
  [[nodiscard]] process_state state_seen_from(const process& here) const noexcept {
    if (machine == 0 || machine != here.machine) return process_state::unknown;
    const auto seen = read_process_status(static_cast<pid_t>(number));
    if (!seen) return says_gone(errno) ? process_state::gone : process_state::running;
    return seen->start_time == start ? seen->state() : process_state::gone;
  }

 private:
  static std::size_t read_file(const char* path, char* into, std::size_t room) noexcept {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const auto got = ::read(file, into, room - 1);
    ::close(file);
    const std::size_t length = got > 0 ? static_cast<std::size_t>(got) : 0;
    into[length] = '\0';
    return length;
  }
};

/// Shared by the threads of one rank.
class world_status {
 public:
  [[nodiscard]] bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  /// Stops the world here, unless it has stopped; true when `why` became the first cause.
  bool abort(abort_cause why) {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(why);
    cause_.at_us = flight_microseconds(std::chrono::steady_clock::now());
    aborted_.store(true, std::memory_order_release);
    return true;
  }

  /// The first cause. Only after `aborted()`.
  [[nodiscard]] abort_cause cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Whether the world stopped because a process is gone.
  [[nodiscard]] bool process_gone() const {
    const std::lock_guard lock(mutex_);
    return cause_.process_gone;
  }

  /// The first cause as an error of this call. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    raise_cause(cause(), mine, seconds_waited);
  }

  [[nodiscard]] flight_recorder<>& recorder(lane which) noexcept { return recorders_[index(which)]; }
  [[nodiscard]] const flight_recorder<>& recorder(lane which) const noexcept { return recorders_[index(which)]; }

  [[nodiscard]] peer_history& history(lane which) noexcept { return histories_[index(which)]; }
  [[nodiscard]] const peer_history& history(lane which) const noexcept { return histories_[index(which)]; }

 private:
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  abort_cause cause_;
  flight_recorder<> recorders_[lane_count];
  peer_history histories_[lane_count];
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
