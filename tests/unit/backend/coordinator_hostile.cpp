// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Processes that must not join, and what ranks that have joined must not be able to do.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <random>

#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/core/process.hpp"
#include "unit/backend/test_world.hpp"

using namespace belay::host;

namespace {

connection connect_to(const bootstrap_socket& socket) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const std::string path = socket.path();
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  belay::unique_fd file(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(file.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return {};
  return connection(std::move(file));
}

message hello_for(const bootstrap_socket& socket, int rank, int ranks, std::uint64_t nonce) {
  message hello;
  hello.kind = message_kind::hello;
  hello.rank = rank;
  hello.numbers = {static_cast<std::uint64_t>(ranks), nonce, belay::read_process_status(::getpid())->start_time};
  hello.secret = socket.secret();
  return hello;
}

// What the coordinator answers to a hello with a change in it; runs in a child, serves meanwhile.
template <class Change>
std::string answer_to(test_ranks& ranks, Change change) {
  int pipe[2];
  REQUIRE(::pipe(pipe) == 0);
  const pid_t child = forked([&] {
    connection link = connect_to(ranks.socket);
    const message greeting = link.receive(in_seconds(20)).said;
    message hello = hello_for(ranks.socket, 0, ranks.ranks, greeting.numbers[0]);
    change(hello);
    if (!link.send(hello, in_seconds(20))) return 1;
    const received got = link.receive(in_seconds(20));
    std::string words = "closed";
    if (got.what == receipt::whole) words = got.said.kind == message_kind::welcome ? "welcome" : got.said.body;
    return ::write(pipe[1], words.data(), words.size()) > 0 ? 0 : 2;
  });
  const auto over = watched_process::watch(child);
  while (!over->gone()) ranks.coordinator.step(in_seconds(0.005));
  const int code = reaped(child);  // -1: it was let in, and the coordinator has reaped it
  CHECK((code == 0 || (code == -1 && ranks.world.exits.at(0).code == 0)));
  char text[1200];
  const ssize_t got = ::read(pipe[0], text, sizeof text);
  ::close(pipe[0]);
  ::close(pipe[1]);
  return std::string(text, static_cast<std::size_t>(std::max<ssize_t>(0, got)));
}

}  // namespace

TEST_CASE("a hello that is not right in everything is refused in words, and the right one still gets in") {
  test_ranks ranks(3);
  CHECK(answer_to(ranks, [](message& hello) { hello.secret[31] ^= std::byte{1}; }) == "a wrong token");
  CHECK(answer_to(ranks, [](message& hello) { hello.secret = {}; }) == "a wrong token");
  CHECK(answer_to(ranks, [](message& hello) { hello.numbers[1] ^= 1; }) == "a hello that was said before");
  CHECK(answer_to(ranks, [](message& hello) { hello.numbers[0] = 2; }) == "rank 0 says 2 ranks, there are 3");
  CHECK(answer_to(ranks, [](message& hello) { hello.numbers[0] = ~0ULL; }).find("there are 3") != std::string::npos);
  CHECK(answer_to(ranks, [](message& hello) { hello.rank = 3; }) == "rank 3 of 3");
  CHECK(answer_to(ranks, [](message& hello) { hello.rank = -1; }) == "rank -1 of 3");
  CHECK(answer_to(ranks, [](message& hello) { hello.rank = -2147483647 - 1; }) == "rank -2147483648 of 3");
  CHECK(answer_to(ranks, [](message& hello) { ++hello.numbers[2]; }) == "the process is not the one that it says");
  CHECK(answer_to(ranks, [](message& hello) { hello.kind = message_kind::shrink; }) == "the first message is no hello");
  CHECK(answer_to(ranks, [](message& hello) { hello.body = "x"; }) == "closed");
  CHECK(ranks.world.joins.empty());
  CHECK(answer_to(ranks, [](message&) {}) == "welcome");
  CHECK(answer_to(ranks, [](message&) {}) == "rank 0 has joined already");  // alive or not, a ticket is for once
  while (ranks.world.exits.empty()) ranks.coordinator.step(in_seconds(20));
  CHECK(answer_to(ranks, [](message&) {}) == "rank 0 has joined already");
  CHECK(ranks.world.joins == std::vector<int>{0});
}

TEST_CASE("after all have joined nobody gets in, with whatever token") {
  test_ranks ranks(1);
  const signal_pipe go;
  connection early = connect_to(ranks.socket);  // connected before the socket closes
  ranks.start([&](client&) {
    go.wait();
    return 0;
  });
  REQUIRE(ranks.coordinator.serve_until_joined(in_seconds(20)));
  ranks.coordinator.step(at_once);
  received got = early.receive(in_seconds(20));
  while (got.what == receipt::whole && got.said.kind == message_kind::greeting) got = early.receive(in_seconds(20));
  CHECK(((got.what == receipt::whole && got.said.body == "all ranks have joined") || got.what == receipt::closed));
  CHECK_FALSE(connect_to(ranks.socket));
  go.tell();
  ranks.coordinator.run();
}

TEST_CASE("a connection without a hello is closed in time, and does not keep others from joining") {
  test_ranks ranks(1, {.hello_limit = std::chrono::milliseconds(500)});
  std::vector<connection> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(connect_to(ranks.socket));
    ranks.coordinator.step(at_once);
  }
  const auto end = in_seconds(20);
  int out = 0;
  while (out < 100 && std::chrono::steady_clock::now() < end) {
    ranks.coordinator.step(in_seconds(0.01));
    out = 0;
    for (connection& one : silent) {
      received got = one.receive(at_once);
      if (got.what == receipt::whole) got = one.receive(at_once);
      if (got.what == receipt::closed) ++out;
    }
  }
  CHECK(out == 100);
  ranks.start([](client&) { return 0; });
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
}

TEST_CASE("random frames from a joined rank end its connection, and nothing of the others") {
  test_ranks ranks(2);
  const signal_pipe go;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.pids.push_back(forked([&] {
      if (rank == 1) {
        client good = ranks.enter(1);
        go.wait();
        good.goodbye({}, in_seconds(20));
        return good.make_region(4096, in_seconds(20)).memory.size_bytes() == 4096 ? 0 : 1;
      }
      connection link = connect_to(ranks.socket);
      const message greeting = link.receive(in_seconds(20)).said;
      if (!link.send(hello_for(ranks.socket, 0, 2, greeting.numbers[0]), in_seconds(20))) return 1;
      if (link.receive(in_seconds(20)).said.kind != message_kind::welcome) return 2;
      std::mt19937_64 chance(7);
      for (int i = 0; i < 20'000; ++i) {
        message odd;
        odd.kind = static_cast<message_kind>(5 + chance() % 8);
        if (odd.kind == message_kind::goodbye || odd.kind == message_kind::shrink) continue;
        if (odd.kind == message_kind::kept || odd.kind == message_kind::attached || odd.kind == message_kind::dropped ||
            odd.kind == message_kind::farewell) {
          if (i < 19'000) continue;  // what only a coordinator sends ends the connection: at the end only
        }
        odd.rank = static_cast<std::int32_t>(chance());
        odd.ticket = chance();
        for (std::uint64_t& number : odd.numbers) number = chance() >> (chance() % 64);
        static_cast<void>(link.receive(at_once));
        if (!link.send(odd, in_seconds(20), chance() % 3 == 0 ? 0 : -1)) break;
      }
      const received last = link.receive(in_seconds(20));
      return last.what == receipt::nothing ? 3 : 0;
    }));
    ranks.coordinator.expect(rank, ranks.pids.back());
  }
  while (!ranks.coordinator.about(0).over) ranks.coordinator.step(in_seconds(20));
  go.tell();
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
  CHECK(ranks.world.exits.at(1).code == 0);
  CHECK(ranks.coordinator.regions() == 0);
}

TEST_CASE("what a rank said before its end is told before its end, however much it was") {
  test_ranks ranks(1);
  ranks.pids.push_back(forked([&] {
    connection link = connect_to(ranks.socket);
    const message greeting = link.receive(in_seconds(20)).said;
    if (!link.send(hello_for(ranks.socket, 0, 1, greeting.numbers[0]), in_seconds(20))) return 1;
    if (link.receive(in_seconds(20)).said.kind != message_kind::welcome) return 2;
    ::raise(SIGSTOP);
    message word;
    word.kind = message_kind::drop;
    for (int i = 0; i < 70; ++i) {
      if (!link.send(word, in_seconds(20))) return 3;
    }
    word.kind = message_kind::goodbye;
    word.body = "the end";
    return link.send(word, in_seconds(20)) ? 0 : 4;
  }));
  ranks.coordinator.expect(0, ranks.pids[0]);
  REQUIRE(ranks.coordinator.serve_until_joined(in_seconds(20)));
  const auto watched = watched_process::watch(ranks.pids[0]);
  while (!watched->stopped()) ranks.coordinator.step(in_seconds(0.001));
  watched->send_signal(SIGCONT);
  pollfd gone{watched->fd(), POLLIN, 0};
  REQUIRE(::poll(&gone, 1, 20'000) == 1);  // all of it lies there, unread
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
  CHECK(ranks.world.goodbyes.at(0).body == "the end");
}

TEST_CASE("memory that could fault its peers is not kept") {
  test_ranks ranks(1);
  ranks.pids.push_back(forked([&] {
    connection link = connect_to(ranks.socket);
    const message greeting = link.receive(in_seconds(20)).said;
    if (!link.send(hello_for(ranks.socket, 0, 1, greeting.numbers[0]), in_seconds(20))) return 1;
    if (link.receive(in_seconds(20)).said.kind != message_kind::welcome) return 2;
    const int open = ::memfd_create("open", MFD_ALLOW_SEALING);
    if (::ftruncate(open, 4096) != 0) return 3;
    message wish;
    wish.kind = message_kind::keep;
    wish.numbers[0] = 4096;
    for (int file : {open, -1, 0}) {
      if (!link.send(wish, in_seconds(20), file)) return 4;
      if (link.receive(in_seconds(20)).said.kind != message_kind::refused) return 5;
    }
    return 0;
  }));
  ranks.coordinator.expect(0, ranks.pids[0]);
  ranks.coordinator.run();
  CHECK(ranks.world.exits.at(0).code == 0);
}

TEST_CASE("another user gets nothing: not the descriptors, not the socket, not with the token; this user does") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: only root can become another user");
    return;
  }
  test_ranks ranks(1);
  const pid_t coordinator_pid = ::getpid();
  const std::string memory =
      "/proc/" + std::to_string(coordinator_pid) + "/fd/" + std::to_string(ranks.world.control_block.fd());
  const auto attempt = [&](uid_t user) {
    return forked([&, user] {
      // What fork gave it is not how another user would come by them.
      for (int file = 3; file < 256; ++file) ::close(file);
      if (user != 0 && (::setgid(user) != 0 || ::setuid(user) != 0)) return 1;
      int got = 0;
      if (::open(memory.c_str(), O_RDWR) >= 0) got |= 2;
      if (connect_to(ranks.socket)) got |= 4;
      try {
        const client self = ranks.enter(0);
        got |= 8;
      } catch (const belay::comm_error&) {
      }
      return got == 0 ? 0 : 100 + got;
    });
  };
  ::chmod(ranks.base.path().c_str(), 0755);  // the socket's own directory shall protect it
  const auto serve_while = [&](pid_t child) {
    const auto over = watched_process::watch(child);
    while (!over->gone()) ranks.coordinator.step(in_seconds(0.005));
    const int code = reaped(child);  // -1: it was let in, and the coordinator may have reaped it
    return code == -1 ? ranks.world.exits.at(0).code : code;
  };
  CHECK(serve_while(attempt(65534)) == 0);
  // With directory and socket open to all, another user can connect, and is closed although it has the token.
  ::chmod(ranks.socket.directory().c_str(), 0777);
  ::chmod(ranks.socket.path().c_str(), 0777);
  CHECK(serve_while(attempt(65534)) == 104);
  CHECK(ranks.world.joins.empty());
  CHECK(serve_while(attempt(0)) == 114);  // the control: all three
  CHECK(ranks.world.joins.size() == 1);
}
