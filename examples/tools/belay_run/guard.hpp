// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A process that outlives belay-run: when that is killed, the kernel ends the ranks' processes, and this
// one ends what they had started.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/error.hpp"
#include "tools/belay_run/child.hpp"

namespace belay_run {

/// Waits for the end of its parent, then kills the process groups that it was told of.
class guard {
 public:
  /// Forks: call it while nothing is open that the other process must not keep. Throws file_error.
  guard() {
    auto [from, to] = make_pipe();
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw belay::file_error("fork", 0, belay::error_text(errno));
    if (pid == 0) watch(from.get(), parent);
    to_ = std::move(to);
  }

  void add(pid_t group) const noexcept { tell(group); }
  /// Its first process is reaped, so that its number may be given to another.
  void remove(pid_t group) const noexcept { tell(-group); }

 private:
  void tell(std::int32_t number) const noexcept { static_cast<void>(!::write(to_.get(), &number, sizeof number)); }

  // Its own session: what a terminal sends is not for it. No output of ours is held open.
  [[noreturn]] static void watch(int from, pid_t parent) {
    ::setsid();
    ::dup2(from, 0);
    const int end_of_parent = ::dup2(belay::host::open_pidfd(parent), 1);
    if (end_of_parent < 0) ::close(1);
    ::syscall(SYS_close_range, 2U, ~0U, 0U);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::signal(number, SIG_IGN);
    std::vector<pid_t> groups;
    std::int32_t number = 0;
    // The end of the pipe is not enough: a rank that is stopped before it runs its program holds the other end too.
    ::fcntl(0, F_SETFL, O_NONBLOCK);
    for (ssize_t got = 0; (got = ::read(0, &number, sizeof number)) != 0;) {
      if (got < 0 && errno == EAGAIN && ::getppid() == parent) {
        pollfd either[] = {{0, POLLIN, 0}, {end_of_parent, POLLIN, 0}};
        ::poll(either, 2, -1);
        continue;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got != static_cast<ssize_t>(sizeof number)) break;
      if (number > 0)
        groups.push_back(number);
      else
        groups.erase(std::remove(groups.begin(), groups.end(), -number), groups.end());
    }
    for (const pid_t group : groups) ::kill(-group, SIGKILL);
    ::_exit(0);
  }

  unique_fd to_;
};

}  // namespace belay_run
