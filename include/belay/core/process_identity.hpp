// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What /proc/PID/stat tells of a process of this machine. The kernel gives a process number again to a later process;
// number and start time together name one process for good.
//
//   const auto seen = belay::read_process_status(pid);  // nothing: there is no such process
//   const bool same = seen && seen->start_time == start_time;
//   if (belay::state_of_process(pid) == belay::process_state::stopped) std::puts("stopped by a signal");
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstdint>
#include <optional>

#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

/// `stopped`: by SIGSTOP or another stop signal. A process that a debugger has stopped is `running`: how long that
/// takes is for its user to decide. `unknown`: it is a process of another machine.
enum class process_state { running, stopped, gone, unknown };

/// One reading of a process: its state, and when it began, which tells it from a later one of the same number.
struct process_status {
  char letter = '?';             // R, S, D, T (stopped), t (by a debugger), Z, ...
  std::uint64_t start_time = 0;  // in clock ticks since the machine started

  /// The state as a word: runs, sleeps, is stopped, ...
  [[nodiscard]] process_state state() const noexcept {
    if (letter == 'T') return process_state::stopped;
    return letter == 'Z' || letter == 'X' ? process_state::gone : process_state::running;
  }
};

/// Nothing where there is no such process, or, `!says_gone(errno)`, where the system cannot say.
[[nodiscard]] BELAY_DECL std::optional<process_status> read_process_status(pid_t pid) noexcept;

/// Whether `error`, of a process that could not be read, says that there is none. Any other one, as for want of a
/// descriptor, leaves it open.
[[nodiscard]] inline bool says_gone(int error) noexcept { return error == 0 || error == ESRCH || is_absence(error); }

/// A process that cannot be read is `running`, unless there is none.
[[nodiscard]] BELAY_DECL process_state state_of_process(pid_t pid) noexcept;

/// 0 when there is no such process.
[[nodiscard]] inline std::uint64_t start_time_of_process(pid_t pid) noexcept {
  const auto seen = read_process_status(pid);
  return seen ? seen->start_time : 0;
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/process_identity.ipp"  // IWYU pragma: export
#endif
