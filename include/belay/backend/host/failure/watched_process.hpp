// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Another process, held by a pidfd: its number may be given to somebody else, the descriptor stays with it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "belay/comm/signal_name.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// glibc 2.36 declares these two without saying that they are C.
[[nodiscard]] inline int open_pidfd(pid_t pid) noexcept { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
[[nodiscard]] inline bool signal_pidfd(int file, int number) noexcept {
  return ::syscall(SYS_pidfd_send_signal, file, number, nullptr, 0) == 0;
}

/// How a process ended, as far as is known: the status is told to its parent only.
struct exit_status {
  enum class kind : std::uint8_t { unknown, exited, signalled };
  kind how = kind::unknown;
  int code = 0;  // exit code or signal

  /// "exited with code 3", "was ended by SIGKILL (9)", "ended"
  [[nodiscard]] std::string text() const {
    if (how == kind::exited) return "exited with code " + std::to_string(code);
    if (how == kind::signalled) return "was ended by " + signal_name(code);
    return "ended";
  }
};

/// What /proc tells of a process.
struct process_look {
  char state = '?';              // R, S, D, T (stopped), t (by a debugger), Z, ...
  std::uint64_t start_time = 0;  // ticks since the machine started; with the number it names a process for good
};

/// Nothing where there is no such process, or, `is_shortage(errno)`, where there is no descriptor to look through.
[[nodiscard]] inline std::optional<process_look> look_at_process(pid_t pid) noexcept {
  errno = 0;
  char path[32] = "/proc/";
  char* const end = std::to_chars(path + 6, path + 20, pid).ptr;
  std::memcpy(end, "/stat", 6);
  const unique_fd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return std::nullopt;
  char text[1024];
  const ssize_t got = ::read(file.get(), text, sizeof text);
  if (got <= 0) return std::nullopt;
  const std::string_view line(text, static_cast<std::size_t>(got));
  std::size_t place = line.rfind(')');  // the second field is a name that may hold anything
  if (place == std::string_view::npos || place + 2 >= line.size()) return std::nullopt;
  process_look seen;
  place += 2;
  seen.state = line[place];
  for (int field = 3; field < 22; ++field) {
    place = line.find(' ', place);
    if (place == std::string_view::npos) return std::nullopt;
    ++place;
  }
  const auto read = std::from_chars(line.data() + place, line.data() + line.size(), seen.start_time);
  return read.ec == std::errc{} ? std::optional(seen) : std::nullopt;
}

/// Whether the process with this number is still the one that started then. A zombie does not run; one that cannot be
/// looked at does.
[[nodiscard]] inline bool still_runs(pid_t pid, std::uint64_t start_time) noexcept {
  const auto seen = look_at_process(pid);
  if (!seen) return is_shortage(errno);
  if (seen->start_time != start_time) return false;
  // State Z alone is no proof: it is also the state of a process whose first thread ended before the others.
  const unique_fd file(open_pidfd(pid));
  if (!file) return errno != ESRCH;
  pollfd entry{file.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 0;
}

/// When a process started, in ticks. Throws `file_error` where it cannot be looked at.
[[nodiscard]] inline std::uint64_t start_time_of(pid_t pid, where at) {
  const auto seen = look_at_process(pid);
  if (!seen) throw file_error("/proc/" + std::to_string(pid) + "/stat", 0, error_text(errno), at);
  return seen->start_time;
}

/// A watched process. Moved, never copied.
class watched_process {
 public:
  /// Nothing where the process is gone already; throws `file_error` where it cannot be watched.
  [[nodiscard]] static std::optional<watched_process> watch(pid_t pid, where at = where::current()) {
    watched_process found;
    found.pid_ = pid;
    found.file_.reset(open_pidfd(pid));
    if (!found.file_) {
      if (errno == ESRCH || errno == EINVAL) return std::nullopt;
      throw file_error("pidfd of process " + std::to_string(pid), 0, error_text(errno), at);
    }
    const auto seen = look_at_process(pid);
    if (!seen && is_shortage(errno)) {
      throw file_error("/proc/" + std::to_string(pid) + "/stat", 0, error_text(errno), at);
    }
    if (!seen) return std::nullopt;
    found.start_time_ = seen->start_time;
    return found;
  }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] std::uint64_t start_time() const noexcept { return start_time_; }
  /// Readable once the process is gone.
  [[nodiscard]] int fd() const noexcept { return file_.get(); }

  [[nodiscard]] bool gone() const noexcept {
    pollfd entry{file_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  }
  /// By SIGSTOP or its like; a debugger's stop is none.
  [[nodiscard]] bool stopped() const noexcept {
    const auto seen = look_at_process(pid_);
    return seen && seen->start_time == start_time_ && seen->state == 'T';
  }
  /// False where it is gone or not ours to signal.
  bool send_signal(int number) const noexcept { return signal_pidfd(file_.get(), number); }

  /// How it ended, once it is gone. A child is reaped by this, so it is asked once.
  [[nodiscard]] exit_status reap() const noexcept {
    siginfo_t status = {};
    while (::waitid(P_PIDFD, static_cast<id_t>(file_.get()), &status, WEXITED | WNOHANG) != 0) {
      if (errno != EINTR) return {};  // ECHILD: it is not our child
    }
    if (status.si_pid == 0) return {};
    if (status.si_code == CLD_EXITED) return {exit_status::kind::exited, status.si_status};
    return {exit_status::kind::signalled, status.si_status};
  }

 private:
  watched_process() noexcept = default;

  pid_t pid_ = 0;
  std::uint64_t start_time_ = 0;
  unique_fd file_;
};

/// In a child after fork: the kernel sends `number` when the thread that forked is gone. False if it is already.
[[nodiscard]] inline bool end_with_parent(pid_t parent, int number = SIGKILL) noexcept {
  return ::prctl(PR_SET_PDEATHSIG, number) == 0 && ::getppid() == parent;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
