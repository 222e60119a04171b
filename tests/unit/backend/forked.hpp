// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Children of a test, and what a test must not leave behind.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>

/// Runs `body` in a child; what it returns is the exit code, an exception is printed and gives 99. A child that
/// hangs is ended by SIGALRM after 30 s.
template <class Body>
[[nodiscard]] pid_t forked(Body body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(SIGABRT, SIG_DFL);  // the test framework's handlers are not for children
  ::signal(SIGSEGV, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  ::alarm(30);
  int code = 99;
  try {
    code = body();
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "child: %s\n", problem.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

/// Exit code, or 1000 + signal.
[[nodiscard]] inline int reaped(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

[[nodiscard]] inline int entries_of(const std::string& folder, const std::string& beginning = "") {
  int count = 0;
  if (DIR* const list = ::opendir(folder.c_str())) {
    while (const dirent* entry = ::readdir(list)) {
      const std::string name = entry->d_name;
      if (name != "." && name != ".." && name.compare(0, beginning.size(), beginning) == 0) ++count;
    }
    ::closedir(list);
  }
  return count;
}

[[nodiscard]] inline int open_descriptors() { return entries_of("/proc/self/fd"); }

[[nodiscard]] inline bool has_children() {
  siginfo_t status = {};
  return ::waitid(P_ALL, 0, &status, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/// A directory that is gone with its contents at the end.
class scratch {
 public:
  scratch() { ::mkdtemp(path_.data()); }
  scratch(const scratch&) = delete;
  scratch& operator=(const scratch&) = delete;
  ~scratch() {
    const std::string command = "rm -rf '" + path_ + "'";
    static_cast<void>(std::system(command.c_str()));
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/socket-test-XXXXXX";
};

/// Reads one byte of a pipe: waits until a child wrote it.
class signal_pipe {
 public:
  signal_pipe() { static_cast<void>(::pipe(ends_)); }
  signal_pipe(const signal_pipe&) = delete;
  signal_pipe& operator=(const signal_pipe&) = delete;
  ~signal_pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void tell() const { static_cast<void>(!::write(ends_[1], "!", 1)); }
  void wait() const {
    char byte = 0;
    while (::read(ends_[0], &byte, 1) < 0) {
    }
  }

 private:
  int ends_[2] = {-1, -1};
};

[[nodiscard]] inline std::chrono::steady_clock::time_point in_seconds(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}
