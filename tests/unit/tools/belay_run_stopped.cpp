// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank that is stopped and does not go on, from its fork to its end: named within --stall, and not waited for.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "unit/backend/forked.hpp"

#ifdef BELAY_RUN

#include "unit/tools/started.hpp"

namespace {

const std::string stop_code = std::to_string(128 + SIGSTOP);

// The ranks are "a rank that may stop" below; rank 1 stops in this phase, and says its number before.
std::vector<std::string> ranks_that_stop(const char* phase, const char* stall = "0.3") {
  ::setenv("BELAY_TEST_PHASE", phase, 1);
  return {
      "-n", "3", "--stall", stall, "--grace", "0.5", this_program(), "--no-skip", "--test-case=*a rank that may stop*"};
}

// Any process that a run leaves behind is seen, because it becomes a child of this one.
void expect_no_process() { CHECK_FALSE(has_children()); }

void expect_named(const outcome& result, const std::string& words) {
  CAPTURE(result.error);
  CHECK(std::to_string(result.code) == stop_code);
  CHECK(result.error.find(words) != std::string::npos);
  expect_no_process();
}

// Of a belay-run that is traced and has not begun: lets it go on, but for the process of rank 1. False: no ptrace.
bool stop_second_rank(pid_t run) {
  int status = 0;
  REQUIRE(::waitpid(run, &status, 0) == run);
  if (WIFEXITED(status)) return false;
  ::ptrace(PTRACE_SETOPTIONS, run, nullptr, PTRACE_O_TRACEFORK | PTRACE_O_EXITKILL);
  // Its children: the guard, rank 0, rank 1.
  for (int forks = 0; forks < 3;) {
    REQUIRE(::ptrace(PTRACE_CONT, run, nullptr, nullptr) == 0);
    REQUIRE(::waitpid(run, &status, 0) == run);
    REQUIRE(WIFSTOPPED(status));
    if (status >> 8 != (SIGTRAP | PTRACE_EVENT_FORK << 8)) continue;
    unsigned long child = 0;
    ::ptrace(PTRACE_GETEVENTMSG, run, nullptr, &child);
    REQUIRE(::waitpid(static_cast<pid_t>(child), &status, __WALL) == static_cast<pid_t>(child));
    const long number = ++forks == 3 ? SIGSTOP : 0;
    ::ptrace(PTRACE_DETACH, child, nullptr, number);
  }
  ::ptrace(PTRACE_DETACH, run, nullptr, nullptr);
  return true;
}

}  // namespace

TEST_CASE("a rank that stops is named in every phase, the others are told, and nothing is left") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  expect_named(run(ranks_that_stop("start")), "belay-run: rank 1 has been stopped for 0.3 s, and has not joined");
  expect_named(run(ranks_that_stop("start")), "[0] peer_failed, rank 1: rank 1 has been stopped for 0.3 s");
  expect_named(run(ranks_that_stop("step")), "rank 1 (stopped, after barrier #0 at ");
  // Nobody waits for it: the others compute, or have returned.
  expect_named(run(ranks_that_stop("alone")), "has been stopped for 0.3 s\n");
  expect_named(run(ranks_that_stop("export")), "belay-run: rank 1 (stopped, after barrier #0 at ");
  expect_named(run(ranks_that_stop("goodbye")), "belay-run: rank 1 has been stopped for 0.3 s after its goodbye");
}

TEST_CASE("programs that never join are watched too, and a rank's wrapper when the rank is gone") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto shell = [](const std::string& script) {
    return run({"-n", "2", "--stall", "0.3", "--grace", "0.5", "sh", "-c", script});
  };
  expect_named(shell("[ $BELAY_RANK = 1 ] && kill -STOP $$; exit 0"),
               "belay-run: rank 1 has been stopped for 0.3 s, and has not joined");
  ::setenv("BELAY_TEST_PHASE", "none", 1);
  expect_named(shell(this_program() +
                     " --no-skip '--test-case=*a rank that may stop*' & wait $!; [ $BELAY_RANK = 1 ] && kill -STOP $$"),
               "belay-run: rank 1 has been stopped for 0.3 s after its goodbye");
}

TEST_CASE("a rank that is stopped between its fork and its program is named, and ends with belay-run") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const bool killed : {false, true}) {
    launched one({"-n", "2", "--stall", "0.3", "--grace", killed ? "60" : "0.5", "sleep", "60"}, "/dev/null", {}, [] {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
      ::raise(SIGSTOP);
    });
    if (!stop_second_rank(one.pid())) {
      MESSAGE("skipped: no ptrace here");
      return;
    }
    if (!killed) {
      expect_named(one.wait(), "belay-run: rank 1 has been stopped for 0.3 s, and has not joined");
      continue;
    }
    CHECK(one.wait_for_lines("error", 1).size() == 1);
    ::kill(one.pid(), SIGKILL);
    CHECK(one.wait().code == 1000 + SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {  // for ever, where a process stays
    }
  }
}

TEST_CASE("a rank that is stopped for less than that is not named") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  launched one(ranks_that_stop("export", "60"));
  const auto lines = one.wait_for_lines("error", 1);
  REQUIRE(lines.size() == 1);
  const pid_t rank = std::stoi(lines[0].substr(4));
  CHECK(is_stopped_soon(rank, true));
  ::kill(rank, SIGCONT);
  const outcome result = one.wait();
  CHECK(result.code == 0);
  CHECK(result.error == lines[0] + "\n");
  expect_no_process();
}

// Not a test: what the ranks above run.

TEST_CASE("a rank that may stop" * doctest::skip()) {
  const char* const set = std::getenv("BELAY_TEST_PHASE");
  const std::string phase = set == nullptr ? "" : set;
  const bool victim = std::string(std::getenv("BELAY_RANK")) == "1";
  const auto may_stop = [&](const char* here) {
    if (!victim || phase != here) return;
    std::fprintf(stderr, "%d\n", static_cast<int>(::getpid()));
    ::raise(SIGSTOP);
  };
  may_stop("start");
  try {
    belay::host::world::from_env().run([&](auto& self) {
      self.world().barrier();
      may_stop("step");
      may_stop("alone");
      while (phase == "alone") ::pause();
      if (phase == "step") self.world().barrier();
      may_stop("export");
    });
  } catch (const belay::comm_error& error) {
    std::fprintf(stderr, "%s, rank %d: %s\n", belay::name(error.fault()), error.about().culprits.at(0),
                 error.about().message.c_str());
    std::fflush(nullptr);
    ::_exit(3);
  }
  may_stop("goodbye");
}

#endif
