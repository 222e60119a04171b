// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A child process that may end by SIGSEGV, and what it has said before.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

namespace ended_child {

struct ended {
  int status = 0;
  std::string said;
  [[nodiscard]] bool by_segv() const { return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV; }
  [[nodiscard]] bool says(const std::string& words) const { return said.find(words) != std::string::npos; }
};

// Runs `body` in a child process without a handler of SIGSEGV (neither of doctest nor of a sanitizer), and returns what
// it prints.
template <class Body>
ended in_child(Body body) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe2(pipe.data(), O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(pipe[1], STDERR_FILENO);
    ::signal(SIGSEGV, SIG_DFL);
    body();
    ::_exit(0);
  }
  ::close(pipe[1]);
  ended out;
  std::array<char, 512> some{};
  for (ssize_t n = 0; (n = ::read(pipe[0], some.data(), some.size())) > 0;)
    out.said.append(some.data(), static_cast<std::size_t>(n));
  ::close(pipe[0]);
  ::waitpid(child, &out.status, 0);
  return out;
}

inline bool segv_is_default() {
  struct sigaction now = {};
  ::sigaction(SIGSEGV, nullptr, &now);
  return now.sa_handler == SIG_DFL && (now.sa_flags & SA_SIGINFO) == 0;
}

}  // namespace ended_child
