// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/bootstrap/coordinator.hpp"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <thread>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "unit/backend/test_world.hpp"

using namespace belay::host;
using exit_kind = exit_status::exit_kind;

TEST_CASE("ranks join, share memory, return results and end; nothing is left") {
  const int before = open_descriptors();
  {
    test_ranks ranks(3);
    std::memcpy(ranks.world.control_block.data(), "hello", 6);
    ranks.start([](client& self) {
      if (std::strcmp(reinterpret_cast<const char*>(self.control_block().data()), "hello") != 0) return 1;
      self.control_block().data()[100 + self.rank()] = std::byte{1};
      exit_message last;
      last.body.assign(static_cast<std::size_t>(self.rank()) * 100'000, static_cast<char>('a' + self.rank()));
      self.goodbye(last, in_seconds(20));
      return 0;
    });
    ranks.coordinator.run();
    CHECK(ranks.world.joins.size() == 3);
    CHECK(ranks.socket.closed());
    CHECK(entries_of(ranks.base.path()) == 0);
    for (int rank = 0; rank < 3; ++rank) {
      CHECK(ranks.world.control_block.data()[100 + rank] == std::byte{1});
      CHECK(ranks.world.goodbyes.at(rank).how == exit_message::outcome::returned);
      CHECK(ranks.world.goodbyes.at(rank).body ==
            std::string(static_cast<std::size_t>(rank) * 100'000, static_cast<char>('a' + rank)));
      CHECK(ranks.world.exits.at(rank).how == exit_kind::exited);
      CHECK(ranks.world.exits.at(rank).code == 0);
    }
  }
  CHECK(open_descriptors() == before);
  CHECK_FALSE(has_children());
}

TEST_CASE("the directory goes when all have joined, not when the world ends") {
  test_ranks ranks(2);
  const signal_pipe go;
  ranks.start([&](client&) {
    go.wait();
    return 0;
  });
  CHECK(ranks.coordinator.serve_until_joined(in_seconds(20)));
  CHECK(entries_of(ranks.base.path()) == 0);
  CHECK(ranks.world.exits.empty());
  go.tell();
  go.tell();
  ranks.coordinator.run();
  CHECK(ranks.world.exits.size() == 2);
}

TEST_CASE("how a rank ends is seen, whatever it does; also when it never joined") {
  test_ranks ranks(6);
  ranks.start([](client& self) {
    if (self.rank() == 1) ::raise(SIGKILL);
    if (self.rank() == 2) std::abort();
    if (self.rank() == 3) ::raise(SIGSEGV);
    if (self.rank() == 4) self.goodbye({exit_message::outcome::failed, 7, "it was too hot"}, in_seconds(20));
    return self.rank() == 5 ? 42 : 0;
  });
  ranks.coordinator.run();
  auto& endings = ranks.world.exits;
  CHECK((endings.at(0).how == exit_kind::exited && endings.at(0).code == 0));
  CHECK((endings.at(1).how == exit_kind::signalled && endings.at(1).code == SIGKILL));
  CHECK((endings.at(2).how == exit_kind::signalled && endings.at(2).code == SIGABRT));
  CHECK((endings.at(3).how == exit_kind::signalled && endings.at(3).code == SIGSEGV));
  CHECK((endings.at(5).how == exit_kind::exited && endings.at(5).code == 42));
  CHECK(ranks.world.goodbyes.size() == 1);
  CHECK(ranks.world.goodbyes.at(4).how == exit_message::outcome::failed);
  CHECK(ranks.world.goodbyes.at(4).kind == 7);
  CHECK(ranks.world.goodbyes.at(4).body == "it was too hot");

  test_ranks alone(1);
  const pid_t child = forked([] { return 3; });
  alone.coordinator.expect(0, child);
  CHECK_FALSE(alone.coordinator.serve_until_joined(in_seconds(20)));
  alone.coordinator.run();
  CHECK(alone.world.joins.empty());
  CHECK(alone.world.exits.at(0).code == 3);
  CHECK(alone.world.children.at(0).code == 3);
  CHECK_FALSE(has_children());
}

TEST_CASE("a kill is seen at once") {
  test_ranks ranks(2);
  const signal_pipe go;
  ranks.start([&](client&) {
    go.wait();
    return 0;
  });
  REQUIRE(ranks.coordinator.serve_until_joined(in_seconds(20)));
  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    killed = std::chrono::steady_clock::now();
    ::kill(ranks.pids[1], SIGKILL);
  });
  while (ranks.world.exits.empty()) ranks.coordinator.step(in_seconds(20));
  killer.join();
  const std::chrono::duration<double, std::milli> seen = ranks.world.exited_at.at(1) - killed;
  MESSAGE("seen after ", seen.count(), " ms");
  CHECK(seen.count() < 5000);  // a busy machine; what is certain is that no deadline was waited for
  go.tell();
  ranks.coordinator.run();
}

TEST_CASE("a process that is not our child is watched, its status is not known") {
  test_ranks ranks(1);
  const signal_pipe orphaned;
  const pid_t between = forked([&] {
    static_cast<void>(forked([&] {
      orphaned.wait();
      client self = ranks.enter(0);
      self.goodbye({}, in_seconds(20));
      return 5;
    }));
    return 0;
  });
  CHECK(reaped(between) == 0);
  orphaned.tell();
  ranks.coordinator.run();
  CHECK(ranks.world.goodbyes.size() == 1);
  CHECK(ranks.world.exits.at(0).how == exit_kind::unknown);
}

TEST_CASE("a started program may let a child of its own join; both ends are told") {
  test_ranks ranks(1);
  const pid_t wrapper = forked([&] {
    const pid_t rank = forked([&] {
      client self = ranks.enter(0);
      return 0;
    });
    return reaped(rank) == 0 ? 9 : 1;
  });
  ranks.coordinator.expect(0, wrapper);
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).how == exit_kind::unknown);
  CHECK(ranks.world.children.at(0).code == 9);
}

TEST_CASE("regions are made, attached, and freed when the last rank that has them dropped them or is gone") {
  test_ranks ranks(2);
  const signal_pipe made, attached, check, finish;
  ranks.start([&](client& self) {
    const auto limit = in_seconds(20);
    auto* const shared = reinterpret_cast<std::uint64_t*>(self.control_block().data());
    if (self.rank() == 0) {
      client::region kept = self.make_region(50'000, limit);
      const client::region dropped = self.make_region(4096, limit);
      kept.memory.data()[49'999] = std::byte{5};
      shared[0] = kept.id;
      shared[1] = dropped.id;
      if (kept.memory.size_bytes() != 50'000 || kept.id == dropped.id) return 1;
      self.drop_region(dropped.id, limit);
      made.tell();
      attached.wait();
      return 0;  // gone without a word: the peer still has the first one
    }
    made.wait();
    const memory_segment peers = self.attach_region(shared[0], limit);
    if (peers.size_bytes() != 50'000 || peers.data()[49'999] != std::byte{5}) return 2;
    for (std::uint64_t none : {shared[1], std::uint64_t{0}, ~std::uint64_t{0}}) {
      try {
        static_cast<void>(self.attach_region(none, limit));
        return 3;
      } catch (const belay::comm_error& error) {
        if (std::string(error.what()).find("there is no region") == std::string::npos) return 4;
      }
    }
    attached.tell();
    check.tell();
    finish.wait();
    if (self.attach_region(shared[0], limit).data()[49'999] != std::byte{5}) return 5;  // its maker is dead
    self.drop_region(shared[0], limit);
    self.drop_region(shared[0], limit);
    try {
      self.drop_region(shared[0], limit);
      return 6;
    } catch (const belay::comm_error&) {
    }
    check.tell();
    finish.wait();
    return 0;
  });
  std::thread stepper([&] { check.wait(); });
  while (ranks.world.exits.empty()) ranks.coordinator.step(in_seconds(20));
  stepper.join();
  CHECK(ranks.coordinator.regions() == 1);
  finish.tell();
  while (ranks.coordinator.regions() != 0) ranks.coordinator.step(in_seconds(20));
  finish.tell();
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
  CHECK(ranks.world.exits.at(1).code == 0);
}

TEST_CASE("a region that is too large is a budget_error with bytes, and the rank goes on") {
  test_ranks ranks(1);
  ranks.start([](client& self) {
    try {
      static_cast<void>(self.make_region(std::size_t{1} << 50, in_seconds(20)));
    } catch (const belay::budget_error& error) {
      if (error.requested_bytes() != std::size_t{1} << 50) return 1;
      return self.make_region(4096, in_seconds(20)).memory.size_bytes() == 4096 ? 0 : 2;
    }
    return 3;
  });
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
  CHECK(ranks.coordinator.regions() == 0);
}

TEST_CASE("several threads of a rank may ask at once") {
  test_ranks ranks(2);
  ranks.start([](client& self) {
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) {
          const auto limit = in_seconds(20);
          const client::region mine = self.make_region(4096, limit);
          mine.memory.data()[0] = std::byte{7};
          good += self.attach_region(mine.id, limit).data()[0] == std::byte{7} ? 1 : 0;
          self.drop_region(mine.id, limit);
          self.drop_region(mine.id, limit);
        }
      });
    }
    for (std::thread& one : threads) one.join();
    return good == 200 ? 0 : 1;
  });
  ranks.coordinator.run();
  CHECK(ranks.coordinator.regions() == 0);
  CHECK(ranks.world.exits.at(0).code == 0);
  CHECK(ranks.world.exits.at(1).code == 0);
}

TEST_CASE("a coordinator that is gone or does not answer ends every call with an error that says so") {
  const scratch base;
  const signal_pipe ready;
  std::string path;
  token secret = {};
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t other = forked([&] {
    bootstrap_socket socket = bootstrap_socket::open_in(base.path());
    test_world world;
    coordinator serving(socket, 2, world.control_block, world);
    const std::string all =
        socket.path() + "\n" + std::string(reinterpret_cast<const char*>(socket.secret().data()), 32);
    if (::write(pipe[1], all.data(), all.size()) < 0) return 1;
    serving.run();
    return 0;
  });
  char text[256];
  const ssize_t got = ::read(pipe[0], text, sizeof text);
  REQUIRE(got > 33);
  ::close(pipe[0]);
  ::close(pipe[1]);
  path.assign(text, static_cast<std::size_t>(got - 33));
  std::memcpy(secret.data(), text + got - 32, 32);
  client self = client::enter(path, secret, 0, 2, in_seconds(20));
  static_cast<void>(self.make_region(4096, in_seconds(20)));

  ::kill(other, SIGSTOP);
  try {
    static_cast<void>(self.attach_region(1, in_seconds(0.05)));
    FAIL("nobody could have answered");
  } catch (const belay::comm_error& error) {
    CHECK(error.fault() == belay::comm_fault::timeout);
    CHECK(std::string(error.what()).find("attach_region") != std::string::npos);
    CHECK(error.about().seconds_waited >= 0.05);
  }
  ::kill(other, SIGCONT);
  // The answer that came too late is not taken for the next one's.
  CHECK(self.make_region(8192, in_seconds(20)).id == 2);
  ::kill(other, SIGKILL);
  CHECK(reaped(other) == 1000 + SIGKILL);
  for (int again = 0; again < 2; ++again) {
    try {
      static_cast<void>(self.attach_region(1, in_seconds(20)));
      FAIL("there is nobody");
    } catch (const belay::comm_error& error) {
      CHECK(error.fault() == belay::comm_fault::peer_failed);
      CHECK(std::string(error.what()).find("the coordinator is gone") != std::string::npos);
    }
  }
  CHECK_THROWS_WITH_AS((void)client::enter(path, secret, 1, 2, in_seconds(20)),
                       doctest::Contains("no bootstrap socket at"), belay::comm_error);
  CHECK(remove_stale_files(base.path()) == 1);
}

TEST_CASE("the token comes through a pipe once") {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  token secret = {};
  secret[3] = std::byte{8};
  REQUIRE(::write(pipe[1], secret.data(), secret.size()) == 32);
  ::close(pipe[1]);
  const int again = ::dup(pipe[0]);
  CHECK(client::token_from_descriptor(pipe[0], in_seconds(20)) == secret);
  CHECK_THROWS_AS((void)client::token_from_descriptor(again, in_seconds(20)), belay::file_error);
  CHECK_THROWS_AS((void)client::token_from_descriptor(-1, in_seconds(20)), belay::file_error);
}
