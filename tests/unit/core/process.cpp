// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/process.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

using belay::process_state;
using belay::read_process_status;
using belay::state_of_process;

namespace {
// A child that waits to be killed. Its name holds what separates fields in /proc/PID/stat.
class child {
 public:
  child() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_NAME, ") T 1 (x");
    while (true) ::pause();
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  ~child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Returns when the kernel has told the parent of a stop, a continuation or the end.
  void signal(int number, int awaited) const {
    REQUIRE(::kill(pid_, number) == 0);
    siginfo_t status = {};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid_), &status, awaited | WNOWAIT) == 0);
  }

 private:
  pid_t pid_;
};
}  // namespace

TEST_CASE("the state of a process follows its stop, its continuation and its end") {
  const child one;
  CHECK(state_of_process(one.pid()) == process_state::running);
  const auto before = read_process_status(one.pid());
  REQUIRE(before);
  one.signal(SIGSTOP, WSTOPPED);
  CHECK(state_of_process(one.pid()) == process_state::stopped);
  one.signal(SIGCONT, WCONTINUED);
  CHECK(state_of_process(one.pid()) == process_state::running);
  one.signal(SIGKILL, WEXITED);  // a zombie now
  CHECK(state_of_process(one.pid()) == process_state::gone);
  CHECK(read_process_status(one.pid())->start_time == before->start_time);
}

TEST_CASE("number and start time tell two processes apart") {
  const child one;
  CHECK(belay::start_time_of_process(one.pid()) >= belay::start_time_of_process(::getpid()));
  CHECK(belay::start_time_of_process(::getpid()) == read_process_status(::getpid())->start_time);
  CHECK(belay::start_time_of_process(::getpid()) > 0);
}

TEST_CASE("there is no such process") {
  pid_t gone = 0;
  {
    const child one;
    gone = one.pid();
  }
  CHECK_FALSE(read_process_status(gone));
  CHECK(state_of_process(gone) == process_state::gone);
  CHECK(belay::start_time_of_process(gone) == 0);
  for (const int error : {0, ENOENT, ESRCH}) CHECK(belay::says_gone(error));
  for (const int error : {EMFILE, EIO, EACCES}) CHECK_FALSE(belay::says_gone(error));  // no answer
}
