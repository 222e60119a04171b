// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Watching a process by its pidfd and /proc.
#pragma once

#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// glibc 2.36 declares the wrappers of these two system calls without extern "C".
BELAY_DECL int open_pidfd(pid_t pid) noexcept { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

BELAY_DECL std::string exit_status::text() const {
  if (how == exit_kind::exited) return "exited with code " + std::to_string(code);
  if (how == exit_kind::signalled) return "was ended by " + signal_name(code);
  return "ended";
}

BELAY_DECL bool still_runs(pid_t pid, std::uint64_t start_time) noexcept {
  const auto seen = read_process_status(pid);
  if (!seen) return !says_gone(errno);
  if (seen->start_time != start_time) return false;
  // State Z alone is no proof: it is also the state of a process whose first thread ended before the others.
  const unique_fd file(open_pidfd(pid));
  if (!file) return errno != ESRCH;
  pollfd entry{file.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 0;
}

BELAY_DECL std::uint64_t start_time_of(pid_t pid, where at) {
  const auto seen = read_process_status(pid);
  if (!seen) throw file_error("/proc/" + std::to_string(pid) + "/stat", 0, error_text(errno), at);
  return seen->start_time;
}

BELAY_DECL std::optional<watched_process> watched_process::watch(pid_t pid, where at) {
  watched_process found;
  found.pid_ = pid;
  found.file_.reset(open_pidfd(pid));
  if (!found.file_) {
    if (errno == ESRCH || errno == EINVAL) return std::nullopt;
    throw file_error("pidfd of process " + std::to_string(pid), 0, error_text(errno), at);
  }
  const auto seen = read_process_status(pid);
  if (!seen && is_shortage(errno)) {
    throw file_error("/proc/" + std::to_string(pid) + "/stat", 0, error_text(errno), at);
  }
  if (!seen) return std::nullopt;
  found.start_time_ = seen->start_time;
  return found;
}

BELAY_DECL bool watched_process::gone() const noexcept {
  pollfd entry{file_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

BELAY_DECL bool watched_process::stopped() const noexcept {
  const auto seen = read_process_status(pid_);
  return seen && seen->start_time == start_time_ && seen->state() == process_state::stopped;
}

BELAY_DECL bool watched_process::send_signal(int number) const noexcept {
  return ::syscall(SYS_pidfd_send_signal, file_.get(), number, nullptr, 0) == 0;
}

BELAY_DECL exit_status watched_process::reap() const noexcept {
  siginfo_t status = {};
  while (::waitid(P_PIDFD, static_cast<id_t>(file_.get()), &status, WEXITED | WNOHANG) != 0) {
    if (errno != EINTR) return {};  // ECHILD: it is not our child
  }
  if (status.si_pid == 0) return {};
  if (status.si_code == CLD_EXITED) return {exit_status::exit_kind::exited, status.si_status};
  return {exit_status::exit_kind::signalled, status.si_status};
}

BELAY_DECL bool end_with_parent(pid_t parent, int number) noexcept {
  return ::prctl(PR_SET_PDEATHSIG, number) == 0 && ::getppid() == parent;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
