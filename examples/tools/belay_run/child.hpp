// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Starting one rank's process, and ending whatever it may have started itself.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/device/available_memory.hpp"

namespace belay_run {

using belay::unique_fd;

/// Opens /dev/null as descriptors 0 to 2 where this program was started without them.
inline void keep_standard_streams() noexcept {
  int file = 0;
  while (file >= 0 && file <= STDERR_FILENO) file = ::open("/dev/null", O_RDWR);
  if (file >= 0) ::close(file);
}

/// The two ends of a pipe: to read from, to write to. Closed by exec.
[[nodiscard]] inline std::pair<unique_fd, unique_fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw belay::file_error("pipe", 0, belay::error_text(errno));
  return {unique_fd(ends[0]), unique_fd(ends[1])};
}

/// How a rank's process is started.
struct start_options {
  int rank = 0;
  int size = 1;
  std::string socket_path;
  belay::host::token secret = {};
  double timeout = 0;
  char* const* program = nullptr;
  sigset_t signals;  // the mask it gets
  rlimit files;      // and the limit of descriptors
};

struct started_child {
  pid_t pid = -1;
  unique_fd out;  // to read what it prints
  unique_fd error;
  unique_fd report;  // to read errno of exec, where the program could not be started; its end otherwise
};

/// Signals as a fresh process has them. A script starts background programs with Ctrl-C ignored, which the ranks
/// would inherit. An ignored SIGHUP stays: nohup is meant for the ranks too.
inline void restore_signals() noexcept {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now = {};
    if (::sigaction(number, nullptr, &now) != 0 || now.sa_handler == SIG_DFL) continue;
    if (number != SIGHUP || now.sa_handler != SIG_IGN) ::signal(number, SIG_DFL);
  }
}

/// In the child. Its process group is its own: belay-run passes on, once, what the terminal sends to its group.
[[noreturn]] inline void run_program(const start_options& how, pid_t parent, int out, int error, int secret,
                                     int report) {
  ::setpgid(0, 0);
  if (!belay::host::end_with_parent(parent)) ::_exit(1);
  restore_signals();
  ::sigprocmask(SIG_SETMASK, &how.signals, nullptr);
  ::setrlimit(RLIMIT_NOFILE, &how.files);
  if (how.rank != 0 || ::isatty(STDIN_FILENO) != 0) {
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    if (nothing > STDERR_FILENO) ::close(nothing);
  }
  ::dup2(out, STDOUT_FILENO);
  ::dup2(error, STDERR_FILENO);
  ::fcntl(secret, F_SETFD, 0);
  ::setenv("BELAY_RANK", std::to_string(how.rank).c_str(), 1);
  ::setenv("BELAY_SIZE", std::to_string(how.size).c_str(), 1);
  ::setenv("BELAY_BOOTSTRAP_SOCKET", how.socket_path.c_str(), 1);
  ::setenv("BELAY_BOOTSTRAP_SECRET_FD", std::to_string(secret).c_str(), 1);
  if (how.timeout > 0) ::setenv("BELAY_TIMEOUT", std::to_string(how.timeout).c_str(), 1);
  ::execvp(how.program[0], how.program);
  const int cause = errno;
  static_cast<void>(!::write(report, &cause, sizeof cause));
  ::_exit(127);
}

/// Forks. `report` tells whether the program runs: a process can be stopped before it does. Throws file_error.
[[nodiscard]] inline started_child start(const start_options& how) {
  auto [out_from, out_to] = make_pipe();
  auto [error_from, error_to] = make_pipe();
  auto [secret_from, secret_to] = make_pipe();
  auto [report_from, report_to] = make_pipe();
  // The token is 32 bytes: it fits, and is gone when the rank has read it.
  if (::write(secret_to.get(), how.secret.data(), how.secret.size()) != static_cast<ssize_t>(how.secret.size()))
    throw belay::file_error("pipe", 0, belay::error_text(errno));
  started_child made;
  const pid_t self = ::getpid();
  made.pid = ::fork();
  if (made.pid == 0) run_program(how, self, out_to.get(), error_to.get(), secret_from.get(), report_to.get());
  if (made.pid < 0) throw belay::file_error("fork", 0, belay::error_text(errno));
  ::setpgid(made.pid, made.pid);  // parent and child both do it; a signal may have to be passed on at once
  made.report = std::move(report_from);
  made.out = std::move(out_from);
  made.error = std::move(error_from);
  return made;
}

/// Orphans of a rank become children of this process.
inline void adopt_orphans() noexcept { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

/// Kills and reaps all children, adopted ones too; as many rounds as they have generations.
inline void end_all_children() {
  const std::string list = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
  while (true) {
    const std::string children = belay::kernel_file(list);
    for (const char* next = children.data(); next < children.data() + children.size();) {
      pid_t child = 0;
      const auto [end, wrong] = std::from_chars(next, children.data() + children.size(), child);
      if (wrong == std::errc{}) ::kill(child, SIGKILL);
      next = end + 1;
    }
    // Without that list only those are reaped that are gone anyway.
    const int how = children.empty() ? WNOHANG : 0;
    const pid_t reaped = ::waitpid(-1, nullptr, how);
    if (reaped == 0 || (reaped < 0 && errno != EINTR)) return;
  }
}

}  // namespace belay_run
