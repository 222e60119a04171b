// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/core/process.hpp"
#include "unit/backend/forked.hpp"

using namespace belay::host;
using namespace std::chrono_literals;

namespace {

// A child that does nothing; stopped and continued for sure when the call returns.
class idle_child {
 public:
  idle_child()
      : pid_(forked([] {
          ::alarm(0);
          while (true) ::pause();
          return 0;
        })) {}
  idle_child(const idle_child&) = delete;
  idle_child& operator=(const idle_child&) = delete;
  ~idle_child() {
    ::kill(pid_, SIGKILL);
    static_cast<void>(reaped(pid_));
  }
  void stop() const { change(SIGSTOP, WSTOPPED); }
  void go_on() const { change(SIGCONT, WCONTINUED); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::optional<watched_process> watched() const { return watched_process::watch(pid_); }

 private:
  void change(int number, int seen) const {
    ::kill(pid_, number);
    siginfo_t status = {};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid_), &status, seen) == 0);
  }
  pid_t pid_;
};

// A watch at times of the test's own.
struct told_watch {
  std::vector<rank_record> records;
  time_point now = std::chrono::steady_clock::now();
  stall_watch watch{10s, now};
  std::vector<int> told = {};

  explicit told_watch(const std::vector<const idle_child*>& children) : records(children.size()) {
    for (std::size_t i = 0; i < children.size(); ++i) records[i].child = children[i]->watched();
  }
  // As the coordinator does: whenever it is time.
  void go_on_for(time_point::duration time) {
    const time_point end = now + time;
    while (watch.next() <= end) {
      now = std::max(now, watch.next());
      watch.look(records, now, [&](int rank) { told.push_back(rank); });
    }
    now = end;
  }
};

}  // namespace

TEST_CASE("a process that is stopped for the limit is told, once for each stop, before it has joined too") {
  const idle_child one, other;
  told_watch all({&one, &other});
  all.go_on_for(1h);
  CHECK(all.told.empty());
  other.stop();
  all.go_on_for(9900ms);
  CHECK(all.told.empty());
  all.go_on_for(600ms);  // a look may come 250 ms after the stop
  CHECK(all.told == std::vector<int>{1});
  all.go_on_for(1h);
  CHECK(all.told == std::vector<int>{1});
  other.go_on();
  all.go_on_for(1s);
  other.stop();
  all.go_on_for(9900ms);
  CHECK(all.told == std::vector<int>{1});
  all.go_on_for(600ms);
  CHECK(all.told == std::vector<int>{1, 1});
}

TEST_CASE("a rank that is continued in time is not told, however often it is stopped") {
  const idle_child one;
  told_watch all({&one});
  for (int i = 0; i < 5; ++i) {
    one.stop();
    all.go_on_for(9s);
    one.go_on();
    all.go_on_for(1s);
  }
  CHECK(all.told.empty());
}

TEST_CASE("time in which the watch itself did not look is nobody's: all were stopped") {
  const idle_child one;
  told_watch all({&one});
  all.go_on_for(1s);
  one.stop();
  all.go_on_for(8s);
  all.now += 1h;
  all.watch.look(all.records, all.now, [&](int rank) { all.told.push_back(rank); });
  CHECK(all.told.empty());
  one.go_on();
  all.go_on_for(1h);
  CHECK(all.told.empty());
}

TEST_CASE("a process that was started for a rank that another process is counts, also when that one is gone") {
  const idle_child wrapper, rank;
  told_watch all({&wrapper});
  all.records[0].member = rank.watched();
  wrapper.stop();
  all.go_on_for(11s);
  CHECK(all.told == std::vector<int>{0});
  wrapper.go_on();
  all.go_on_for(1s);
  all.records[0].over = true;
  wrapper.stop();
  all.go_on_for(11s);
  CHECK(all.told == std::vector<int>{0, 0});
}

TEST_CASE("one that a debugger holds is not stopped") {
  const idle_child one;
  told_watch all({&one});
  if (::ptrace(PTRACE_SEIZE, one.pid(), nullptr, nullptr) != 0) {
    MESSAGE("skipped: no ptrace here");
    return;
  }
  REQUIRE(::ptrace(PTRACE_INTERRUPT, one.pid(), nullptr, nullptr) == 0);
  int status = 0;
  REQUIRE(::waitpid(one.pid(), &status, __WALL) == one.pid());
  CHECK(belay::read_process_status(one.pid())->letter == 't');
  CHECK(belay::state_of_process(one.pid()) == belay::process_state::running);
  all.go_on_for(1h);
  CHECK(all.told.empty());
}
