// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the survivors agree on who is left, and how a stopped rank is found.
#include <doctest/doctest.h>

#include <thread>

#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "unit/backend/test_world.hpp"

using namespace belay::host;
using members = std::vector<int>;

namespace {

// Shrinks and sends home what it was told: {rank, epoch, first byte of the control segment, members...}.
int shrink_and_tell(client& self, double seconds = 20) {
  const client::renewed world = self.shrink(in_seconds(seconds));
  exit_message last;
  last.body = {static_cast<char>(world.rank), static_cast<char>(world.epoch),
               static_cast<char>(world.control_block.data()[0])};
  for (int rank : world.members) last.body += static_cast<char>(rank);
  self.goodbye(last, in_seconds(20));
  return 0;
}

std::string told(int rank, int epoch, int renewal, const members& list) {
  std::string body = {static_cast<char>(rank), static_cast<char>(epoch), static_cast<char>(renewal)};
  for (int one : list) body += static_cast<char>(one);
  return body;
}

}  // namespace

TEST_CASE("survivors get new ranks in the old order, one list and a fresh control segment") {
  test_party collective_context(4);
  collective_context.start([](client& self) {
    if (self.rank() == 1) ::raise(SIGKILL);
    return shrink_and_tell(self);
  });
  collective_context.coordinator.run();
  CHECK(collective_context.world.renewals == std::vector<members>{{0, 2, 3}});
  CHECK(collective_context.coordinator.members() == members{0, 2, 3});
  CHECK(collective_context.world.partings.at(0).body == told(0, 1, 1, {0, 2, 3}));
  CHECK(collective_context.world.partings.at(2).body == told(1, 1, 1, {0, 2, 3}));
  CHECK(collective_context.world.partings.at(3).body == told(2, 1, 1, {0, 2, 3}));
}

TEST_CASE("a rank that has returned, or failed, or lost its line is not waited for") {
  test_party collective_context(4);
  const signal_pipe go;
  collective_context.start([&](client& self) {
    if (self.rank() == 0) self.goodbye({}, in_seconds(20));
    if (self.rank() == 1) {
      const client closed = std::move(self);
    }
    if (self.rank() < 2) {
      go.wait();  // alive, but without a say
      return 0;
    }
    return shrink_and_tell(self);
  });
  while (collective_context.world.partings.size() < 3) collective_context.coordinator.step(in_seconds(20));
  CHECK(collective_context.world.renewals == std::vector<members>{{2, 3}});
  go.tell();
  go.tell();
  collective_context.coordinator.run();
}

TEST_CASE("it can shrink again and again, down to one") {
  test_party collective_context(4);
  collective_context.start([](client& self) {
    for (int dying = 0; dying < 3; ++dying) {
      if (self.rank() == dying) ::raise(SIGKILL);
      const client::renewed world = self.shrink(in_seconds(20));
      if (world.epoch != static_cast<std::uint64_t>(dying) + 1 || world.rank != self.rank() - dying - 1) return 1;
      if (world.members.size() != static_cast<std::size_t>(3 - dying)) return 2;
    }
    return 0;
  });
  collective_context.coordinator.run();
  CHECK(collective_context.world.renewals == std::vector<members>{{1, 2, 3}, {2, 3}, {3}});
  CHECK(collective_context.world.endings.at(3).code == 0);
}

TEST_CASE("a rank that dies after it asked is not in the new world, whenever that is seen") {
  enum class when { before_the_last_asks, before_it_is_made, while_it_is_made };
  for (const when killed : {when::before_the_last_asks, when::before_it_is_made, when::while_it_is_made}) {
    CAPTURE(static_cast<int>(killed));
    test_party collective_context(4);
    const signal_pipe last_one;
    collective_context.start([&](client& self) {
      if (self.rank() == 1) ::raise(SIGKILL);
      if (self.rank() == 3) {
        last_one.wait();
        if (killed == when::before_it_is_made) {
          self.goodbye({}, in_seconds(20));  // the holder tells its world, which is when 0 dies
          return 0;
        }
      }
      return shrink_and_tell(self);
    });
    const auto kill_0 = [&] {
      const auto watched = watched_process::watch(collective_context.pids[0]);
      ::kill(collective_context.pids[0], SIGKILL);
      while (watched && !watched->gone()) {
      }
    };
    while (!collective_context.coordinator.about(0).shrink || !collective_context.coordinator.about(2).shrink || !collective_context.coordinator.about(1).over)
      collective_context.coordinator.step(in_seconds(20));
    if (killed == when::before_the_last_asks) {
      kill_0();
      while (!collective_context.coordinator.about(0).over) collective_context.coordinator.step(in_seconds(20));
    }
    bool done = false;
    const auto once = [&] {
      if (!std::exchange(done, true)) kill_0();
    };
    if (killed == when::before_it_is_made) collective_context.world.at_goodbye = once;
    if (killed == when::while_it_is_made) collective_context.world.at_renewal = [&](const members&) { once(); };
    last_one.tell();
    collective_context.coordinator.run();
    const members left = killed == when::before_it_is_made ? members{2} : members{2, 3};
    const int renewals = killed == when::while_it_is_made ? 2 : 1;
    CHECK(collective_context.world.renewals.back() == left);
    CHECK(collective_context.world.renewals.size() == static_cast<std::size_t>(renewals));
    CHECK(collective_context.world.partings.at(2).body == told(0, 1, renewals, left));
    CHECK(collective_context.world.partings.count(0) == 0);
  }
}

TEST_CASE("kills at any time_point: the survivors always agree") {
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    test_party collective_context(4);
    const signal_pipe go;
    collective_context.start([&](client& self) {
      if (self.rank() == 1) ::raise(SIGKILL);
      if (self.rank() == 2) go.wait();
      return shrink_and_tell(self);
    });
    REQUIRE(collective_context.coordinator.serve_until_joined(in_seconds(20)));
    std::thread killer([&] {
      go.tell();
      for (int spin = 0; spin < round * 2000; ++spin) __builtin_ia32_pause();
      ::kill(collective_context.pids[3], SIGKILL);
    });
    collective_context.coordinator.run();
    killer.join();
    // Whoever got an answer got the same one, unless a later one replaced it for all.
    const auto& partings = collective_context.world.partings;
    REQUIRE(partings.count(0) == 1);
    REQUIRE(partings.count(2) == 1);
    CHECK(partings.at(0).body.substr(1) == partings.at(2).body.substr(1));
    CHECK(collective_context.coordinator.members() == collective_context.world.renewals.back());
  }
  CHECK_FALSE(has_children());
}

TEST_CASE("a stopped rank is told once for each stop; when others want to shrink it is killed first") {
  test_party collective_context(3, {.stall_limit = std::chrono::milliseconds(100)});
  const signal_pipe go;
  collective_context.start([&](client& self) {
    if (self.rank() == 2) {
      while (true) ::pause();
    }
    go.wait();
    return shrink_and_tell(self);
  });
  REQUIRE(collective_context.coordinator.serve_until_joined(in_seconds(20)));
  for (std::size_t stop = 1; stop <= 2; ++stop) {
    ::kill(collective_context.pids[2], SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    while (collective_context.world.stalls.size() < stop) collective_context.coordinator.step(in_seconds(20));
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(100));
    const auto later = in_seconds(0.3);
    while (std::chrono::steady_clock::now() < later) collective_context.coordinator.step(later);
    CHECK(collective_context.world.stalls == members(stop, 2));
    CHECK(collective_context.world.endings.empty());
    if (stop == 2) break;
    ::kill(collective_context.pids[2], SIGCONT);
    const auto running = in_seconds(0.3);
    while (std::chrono::steady_clock::now() < running) collective_context.coordinator.step(running);
  }
  go.tell();
  go.tell();
  collective_context.coordinator.run();
  CHECK(collective_context.world.endings.at(2).code == SIGKILL);
  CHECK(collective_context.world.renewals == std::vector<members>{{0, 1}});
}

TEST_CASE("who is not stopped for long is waited for, not killed") {
  test_party collective_context(2, {.stall_limit = std::chrono::seconds(10)});
  collective_context.start([](client& self) { return shrink_and_tell(self); });
  ::kill(collective_context.pids[1], SIGSTOP);
  std::thread waker([&] {
    const auto stopped = watched_process::watch(collective_context.pids[1]);
    while (!stopped->aborted()) {
    }
    ::kill(collective_context.pids[1], SIGCONT);
  });
  collective_context.coordinator.run();
  waker.join();
  CHECK(collective_context.world.renewals == std::vector<members>{{0, 1}});
}

TEST_CASE("at the deadline the one who asks hears who is missing, and is in no new world") {
  test_party collective_context(3);
  const signal_pipe go;
  collective_context.start([&](client& self) {
    if (self.rank() > 0) {
      go.wait();
      return shrink_and_tell(self);
    }
    try {
      static_cast<void>(self.shrink(in_seconds(0.1)));
      return 1;
    } catch (const belay::comm_error& error) {
      if (error.fault() != belay::comm_fault::timeout) return 2;
      const std::string words = error.what();
      if (words.find("rank 1 (running), rank 2 (running)") == std::string::npos) return 3;
      if (error.about().seconds_waited < 0.1 || error.about().operation != "shrink") return 4;
    }
    go.tell();
    go.tell();
    return shrink_and_tell(self);
  });
  collective_context.coordinator.run();
  CHECK(collective_context.world.renewals == std::vector<members>{{0, 1, 2}});
  for (int rank = 0; rank < 3; ++rank) CHECK(collective_context.world.endings.at(rank).code == 0);
}

TEST_CASE("too little memory for a new world is told to all who asked") {
  test_party collective_context(2);
  collective_context.world.at_renewal = [](const members&) {
    throw belay::budget_error("shared memory", 12345, 67, belay::where::current());
  };
  collective_context.start([](client& self) {
    try {
      static_cast<void>(self.shrink(in_seconds(20)));
    } catch (const belay::budget_error& error) {
      return error.requested_bytes() == 12345 && error.available_bytes() == 67 ? 0 : 1;
    }
    return 2;
  });
  collective_context.coordinator.run();
  CHECK(collective_context.world.endings.at(0).code == 0);
  CHECK(collective_context.world.endings.at(1).code == 0);
}
