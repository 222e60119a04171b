// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the survivors agree on the ranks that are left, and how a stopped rank is found.
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
  test_ranks ranks(4);
  ranks.start([](client& self) {
    if (self.rank() == 1) ::raise(SIGKILL);
    return shrink_and_tell(self);
  });
  ranks.coordinator.run();
  CHECK(ranks.world.renewals == std::vector<members>{{0, 2, 3}});
  CHECK(ranks.coordinator.members() == members{0, 2, 3});
  CHECK(ranks.world.goodbyes.at(0).body == told(0, 1, 1, {0, 2, 3}));
  CHECK(ranks.world.goodbyes.at(2).body == told(1, 1, 1, {0, 2, 3}));
  CHECK(ranks.world.goodbyes.at(3).body == told(2, 1, 1, {0, 2, 3}));
}

TEST_CASE("a rank that has returned, or failed, or lost its connection is not waited for") {
  test_ranks ranks(4);
  const signal_pipe go;
  ranks.start([&](client& self) {
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
  while (ranks.world.goodbyes.size() < 3) ranks.coordinator.step(in_seconds(20));
  CHECK(ranks.world.renewals == std::vector<members>{{2, 3}});
  go.tell();
  go.tell();
  ranks.coordinator.run();
}

TEST_CASE("it can shrink again and again, down to one") {
  test_ranks ranks(4);
  ranks.start([](client& self) {
    for (int dying = 0; dying < 3; ++dying) {
      if (self.rank() == dying) ::raise(SIGKILL);
      const client::renewed world = self.shrink(in_seconds(20));
      if (world.epoch != static_cast<std::uint64_t>(dying) + 1 || world.rank != self.rank() - dying - 1) return 1;
      if (world.members.size() != static_cast<std::size_t>(3 - dying)) return 2;
    }
    return 0;
  });
  ranks.coordinator.run();
  CHECK(ranks.world.renewals == std::vector<members>{{1, 2, 3}, {2, 3}, {3}});
  CHECK(ranks.world.exits.at(3).code == 0);
}

TEST_CASE("a rank that dies after it asked is not in the new world, whenever that is seen") {
  enum class when { before_the_last_asks, before_it_is_made, while_it_is_made };
  for (const when killed : {when::before_the_last_asks, when::before_it_is_made, when::while_it_is_made}) {
    CAPTURE(static_cast<int>(killed));
    test_ranks ranks(4);
    const signal_pipe last_one;
    ranks.start([&](client& self) {
      if (self.rank() == 1) ::raise(SIGKILL);
      if (self.rank() == 3) {
        last_one.wait();
        if (killed == when::before_it_is_made) {
          self.goodbye({}, in_seconds(20));  // the coordinator reports it, which is when 0 dies
          return 0;
        }
      }
      return shrink_and_tell(self);
    });
    const auto kill_0 = [&] {
      const auto watched = watched_process::watch(ranks.pids[0]);
      ::kill(ranks.pids[0], SIGKILL);
      while (watched && !watched->gone()) {
      }
    };
    while (!ranks.coordinator.about(0).shrink || !ranks.coordinator.about(2).shrink || !ranks.coordinator.about(1).over)
      ranks.coordinator.step(in_seconds(20));
    if (killed == when::before_the_last_asks) {
      kill_0();
      while (!ranks.coordinator.about(0).over) ranks.coordinator.step(in_seconds(20));
    }
    bool done = false;
    const auto once = [&] {
      if (!std::exchange(done, true)) kill_0();
    };
    if (killed == when::before_it_is_made) ranks.world.at_goodbye = once;
    if (killed == when::while_it_is_made) ranks.world.at_renewal = [&](const members&) { once(); };
    last_one.tell();
    ranks.coordinator.run();
    const members left = killed == when::before_it_is_made ? members{2} : members{2, 3};
    const int renewals = killed == when::while_it_is_made ? 2 : 1;
    CHECK(ranks.world.renewals.back() == left);
    CHECK(ranks.world.renewals.size() == static_cast<std::size_t>(renewals));
    CHECK(ranks.world.goodbyes.at(2).body == told(0, 1, renewals, left));
    CHECK(ranks.world.goodbyes.count(0) == 0);
  }
}

TEST_CASE("kills at any time: the survivors always agree") {
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    test_ranks ranks(4);
    const signal_pipe go;
    ranks.start([&](client& self) {
      if (self.rank() == 1) ::raise(SIGKILL);
      if (self.rank() == 2) go.wait();
      return shrink_and_tell(self);
    });
    REQUIRE(ranks.coordinator.serve_until_joined(in_seconds(20)));
    std::thread killer([&] {
      go.tell();
      for (int spin = 0; spin < round * 2000; ++spin) __builtin_ia32_pause();
      ::kill(ranks.pids[3], SIGKILL);
    });
    ranks.coordinator.run();
    killer.join();
    // All ranks with an answer got the same one, unless a later one replaced it for all.
    const auto& partings = ranks.world.goodbyes;
    REQUIRE(partings.count(0) == 1);
    REQUIRE(partings.count(2) == 1);
    CHECK(partings.at(0).body.substr(1) == partings.at(2).body.substr(1));
    CHECK(ranks.coordinator.members() == ranks.world.renewals.back());
  }
  CHECK_FALSE(has_children());
}

TEST_CASE("a stopped rank is told once for each stop; when others want to shrink it is killed first") {
  test_ranks ranks(3, {.stall_limit = std::chrono::milliseconds(100)});
  const signal_pipe go;
  ranks.start([&](client& self) {
    if (self.rank() == 2) {
      while (true) ::pause();
    }
    go.wait();
    return shrink_and_tell(self);
  });
  REQUIRE(ranks.coordinator.serve_until_joined(in_seconds(20)));
  for (std::size_t stop = 1; stop <= 2; ++stop) {
    ::kill(ranks.pids[2], SIGSTOP);
    const auto begin = std::chrono::steady_clock::now();
    while (ranks.world.stalls.size() < stop) ranks.coordinator.step(in_seconds(20));
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(100));
    const auto later = in_seconds(0.3);
    while (std::chrono::steady_clock::now() < later) ranks.coordinator.step(later);
    CHECK(ranks.world.stalls == members(stop, 2));
    CHECK(ranks.world.exits.empty());
    if (stop == 2) break;
    ::kill(ranks.pids[2], SIGCONT);
    const auto running = in_seconds(0.3);
    while (std::chrono::steady_clock::now() < running) ranks.coordinator.step(running);
  }
  go.tell();
  go.tell();
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(2).code == SIGKILL);
  CHECK(ranks.world.renewals == std::vector<members>{{0, 1}});
}

TEST_CASE("a rank that is not stopped for long is waited for, not killed") {
  test_ranks ranks(2, {.stall_limit = std::chrono::seconds(10)});
  ranks.start([](client& self) { return shrink_and_tell(self); });
  ::kill(ranks.pids[1], SIGSTOP);
  std::thread waker([&] {
    const auto stopped = watched_process::watch(ranks.pids[1]);
    while (!stopped->stopped()) {
    }
    ::kill(ranks.pids[1], SIGCONT);
  });
  ranks.coordinator.run();
  waker.join();
  CHECK(ranks.world.renewals == std::vector<members>{{0, 1}});
}

TEST_CASE("at the deadline the asking rank is told which are missing, and is in no new world") {
  test_ranks ranks(3);
  const signal_pipe go;
  ranks.start([&](client& self) {
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
  ranks.coordinator.run();
  CHECK(ranks.world.renewals == std::vector<members>{{0, 1, 2}});
  for (int rank = 0; rank < 3; ++rank) CHECK(ranks.world.exits.at(rank).code == 0);
}

TEST_CASE("too little memory for a new world is told to all ranks that asked") {
  test_ranks ranks(2);
  ranks.world.at_renewal = [](const members&) {
    throw belay::budget_error("shared memory", 12345, 67, belay::where::current());
  };
  ranks.start([](client& self) {
    try {
      static_cast<void>(self.shrink(in_seconds(20)));
    } catch (const belay::budget_error& error) {
      return error.requested_bytes() == 12345 && error.available_bytes() == 67 ? 0 : 1;
    }
    return 2;
  });
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
  CHECK(ranks.world.exits.at(1).code == 0);
}
