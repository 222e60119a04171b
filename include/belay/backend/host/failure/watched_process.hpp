// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Another process, held by a pidfd: the kernel may give its number to a later process, the descriptor stays with it.
// IWYU pragma: private, include "belay/backend/host/processes.hpp"
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "belay/core/config.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How a process ended. Only its parent is told; for others it is `unknown`.
struct exit_status {
  enum class exit_kind : std::uint8_t { unknown, exited, signalled };
  exit_kind how = exit_kind::unknown;
  int code = 0;  // exit code or signal

  /// "exited with code 3", "was ended by SIGKILL (9)", "ended"
  [[nodiscard]] std::string text() const;
};

/// The pidfd of a process, or -1 with errno.
[[nodiscard]] BELAY_DECL int open_pidfd(pid_t pid) noexcept;

/// Whether the process with this number is still the one that started at that time. A zombie does not run; a process
/// that cannot be read for want of a descriptor does.
[[nodiscard]] BELAY_DECL bool still_runs(pid_t pid, std::uint64_t start_time) noexcept;

/// When a process started, in clock ticks. Throws `file_error` where that cannot be read.
[[nodiscard]] BELAY_DECL std::uint64_t start_time_of(pid_t pid, where at);

/// A watched process. Moved, never copied.
class watched_process {
 public:
  /// Nothing where the process is gone already; throws `file_error` where it cannot be watched.
  [[nodiscard]] static std::optional<watched_process> watch(pid_t pid, where at = where::current());

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] std::uint64_t start_time() const noexcept { return start_time_; }
  /// Readable once the process is gone.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }

  [[nodiscard]] bool gone() const noexcept;
  /// By a stop signal; a debugger's stop is none.
  [[nodiscard]] bool stopped() const noexcept;
  /// False where it is gone or not ours to signal.
  bool send_signal(int number) const noexcept;

  /// How it ended, once it is gone. This reaps a child, so call it once.
  [[nodiscard]] exit_status reap() const noexcept;

 private:
  watched_process() noexcept = default;

  pid_t pid_ = 0;
  std::uint64_t start_time_ = 0;
  unique_fd file_;
};

/// In a child after fork: the kernel sends `number` when the thread that forked is gone. False if it is already.
[[nodiscard]] BELAY_DECL bool end_with_parent(pid_t parent, int number = SIGKILL) noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/failure/watched_process.ipp"  // IWYU pragma: export
#endif
