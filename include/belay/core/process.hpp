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
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {

// Signals by name: "SIGKILL (9)" says more than "signal 9", and the texts of strsignal depend on the locale.

/// "SIGKILL (9)", or "signal 40" for one without a name here.
[[nodiscard]] BELAY_DECL std::string signal_name(int number);

// The process's environment, which Belay reads here and nowhere else.

/// The value of a variable, valid until the process changes its environment; null where it is not set.
[[nodiscard]] BELAY_DECL const char* environment_variable(const char* name) noexcept;

/// A set of the first 1024 cores of a machine, one bit each, in plain words that processes can share.
struct core_set {
  /// One bit a core.
  static constexpr std::size_t words = 16;
  std::uint64_t bits[words] = {};

  /// Cores in the set.
  [[nodiscard]] int count() const noexcept;
  /// The cores on which the calling thread may run.
  [[nodiscard]] static core_set allowed() noexcept;
};

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

/// The process in which it was made. `here()` costs a load: the kernel wipes the page in a forked child.
/// The process that something belongs to. A forked child of a rank has a copy of all that the rank has, shared memory
/// and sockets included, but is no rank: it must not act as one.
class own_process {
 public:
  own_process() noexcept;
  own_process(const own_process&) = delete;
  own_process& operator=(const own_process&) = delete;
  ~own_process();

  /// False in a forked child.
  [[nodiscard]] bool here() const noexcept { return mark_ != nullptr ? *mark_ != 0 : ::getpid() == number_; }
  [[nodiscard]] pid_t number() const noexcept { return number_; }

 private:
  pid_t number_;
  std::size_t bytes_;
  volatile unsigned char* mark_ = nullptr;
};

/// A forked child has come to the end of a rank's body, which the rank itself will return from: prints that and ends
/// the child, without what its parent will still do.
[[noreturn]] BELAY_DECL void end_forked_child(int rank, const char* problem) noexcept;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/process.ipp"  // IWYU pragma: export
#endif
