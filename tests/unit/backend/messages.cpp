// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/host/bootstrap/messages.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "unit/backend/forked.hpp"

using namespace belay::host;
using frame = connection::frame;

namespace {

std::pair<connection, connection> ends() {
  auto both = connected_pair();
  REQUIRE(both);
  return std::move(*both);
}

frame good_frame() {
  frame one = {};
  one.magic_word = connection::magic;
  one.version_number = connection::version;
  one.kind = 2;
  one.rank = 1;
  return one;
}

void push(const connection& from, const void* bytes, std::size_t size) {
  REQUIRE(::send(from.fd(), bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
}

void push_files(const connection& from, const frame& what, const std::vector<int>& files) {
  iovec piece{const_cast<frame*>(&what), sizeof what};
  alignas(cmsghdr) char control_block[CMSG_SPACE(64 * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &piece;
  header.msg_iovlen = 1;
  header.msg_control = control_block;
  header.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), files.data(), files.size() * sizeof(int));
  REQUIRE(::sendmsg(from.fd(), &header, MSG_NOSIGNAL) > 0);
}

}  // namespace

TEST_CASE("a message arrives as it was sent, with its descriptor, whatever its length") {
  const int before = open_descriptors();
  {
    auto [a, b] = ends();
    for (std::size_t length : {0UL, 1UL, 1023UL, 1024UL, 1025UL, 2048UL, 300'000UL}) {
      CAPTURE(length);
      message out;
      out.kind = message_kind::goodbye;
      out.rank = 7;
      out.ticket = 1ULL << 63;
      out.numbers = {1, ~0ULL, 3};
      out.secret[31] = std::byte{9};
      for (std::size_t i = 0; i < length; ++i) out.body += static_cast<char>(i * 7);
      int pipe[2];
      REQUIRE(::pipe(pipe) == 0);
      std::thread sender([&, &from = a] { CHECK(from.send(out, in_seconds(10), pipe[1])); });
      received in = b.receive(in_seconds(10));
      sender.join();
      ::close(pipe[1]);
      CHECK(in.what == receipt::whole);
      CHECK(in.said.kind == out.kind);
      CHECK(in.said.rank == 7);
      CHECK(in.said.ticket == out.ticket);
      CHECK(in.said.numbers == out.numbers);
      CHECK(in.said.secret == out.secret);
      CHECK(in.said.body == out.body);
      CHECK(::fcntl(in.file.get(), F_GETFD) == FD_CLOEXEC);
      CHECK(::write(in.file.get(), "x", 1) == 1);
      char byte = 0;
      CHECK(::read(pipe[0], &byte, 1) == 1);
      ::close(pipe[0]);
    }
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("a deadline ends a receive and a send; the end of the other side is told, without a signal") {
  auto [a, b] = ends();
  CHECK(b.receive(at_once).what == receipt::nothing);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(b.receive(in_seconds(0.05)).what == receipt::nothing);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(50));
  message long_one;
  long_one.body.assign(4 << 20, 'x');
  CHECK_FALSE(a.send(long_one, in_seconds(0.05)));  // nobody reads
  a.close();
  while (b.receive(at_once).what == receipt::whole) {
  }
  CHECK(b.receive(in_seconds(10)).what == receipt::closed);
  CHECK_FALSE(b.send(message{}, in_seconds(10)));
}

TEST_CASE("half a message waits for its other half") {
  auto [a, b] = ends();
  frame first = good_frame();
  first.used = 1024;
  first.left = 5;
  push(a, &first, sizeof first);
  CHECK(b.receive(at_once).what == receipt::nothing);
  first.used = 5;
  first.left = 0;
  push(a, &first, sizeof first);
  const received whole = b.receive(at_once);
  CHECK(whole.what == receipt::whole);
  CHECK(whole.said.body.size() == 1029);
}

TEST_CASE("last words are read although the other side closed with something unread") {
  auto [a, b] = ends();
  message word;
  word.kind = message_kind::refused;
  word.body = "no";
  CHECK(b.send(word, at_once));
  CHECK(a.send(word, at_once));
  a.close();
  const received got = b.receive(in_seconds(10));
  CHECK(got.what == receipt::whole);
  CHECK(got.said.body == "no");
}

TEST_CASE("frames that are none are garbled, each for its reason") {
  const auto why = [](auto change) {
    auto [a, b] = ends();
    frame one = good_frame();
    change(one);
    push(a, &one, sizeof one);
    const received got = b.receive(at_once);
    return got.what == receipt::garbled ? std::string(got.why) : std::string("taken");
  };
  CHECK(why([](frame&) {}) == "taken");
  CHECK(why([](frame& f) { f.magic_word ^= 1; }) == "a frame without our mark");
  CHECK(why([](frame& f) { f.version_number = 2; }) == "a frame of another version");
  CHECK(why([](frame& f) { f.kind = 0; }) == "a message of no known kind");
  CHECK(why([](frame& f) { f.kind = last_message_kind + 1; }) == "a message of no known kind");
  CHECK(why([](frame& f) { f.used = 1025; }) == "a length that cannot be");
  CHECK(why([](frame& f) { f.used = ~0U; }) == "a length that cannot be");
  CHECK(why([](frame& f) { f.left = 1; }) == "a length that cannot be");
  CHECK(why([](frame& f) { f.used = 1024, f.left = ~0ULL; }) == "a longer message than is taken");
  constexpr std::uint64_t too_long = connection::longest_body - 1023;
  CHECK(why([](frame& f) { f.used = 1024, f.left = too_long; }) == "a longer message than is taken");
}

TEST_CASE("a body that goes on otherwise than it began is garbled, also where the sum of its lengths wraps around") {
  const auto why = [](auto change) {
    auto [a, b] = ends();
    frame one = good_frame();
    one.used = 1024;
    one.left = 524;
    push(a, &one, sizeof one);
    one.used = 524;
    one.left = 0;
    change(one);
    push(a, &one, sizeof one);
    const received got = b.receive(at_once);
    return got.what == receipt::garbled ? std::string(got.why) : std::string("taken");
  };
  CHECK(why([](frame&) {}) == "taken");
  CHECK(why([](frame& f) { f.kind = 3; }) == "a message in the middle of another");
  CHECK(why([](frame& f) { f.ticket = 3; }) == "a message in the middle of another");
  CHECK(why([](frame& f) { f.used = 523; }) == "a message that is longer or shorter than it said");
  CHECK(why([](frame& f) { f.used = 0; }) == "a message that is longer or shorter than it said");
  // 1024 + (2^64 - 500) is 524
  CHECK(why([](frame& f) { f.used = 1024, f.left = ~0ULL - 499; }) ==
        "a message that is longer or shorter than it said");
}

TEST_CASE("a frame of another size, or with more than one descriptor, is garbled and leaves no descriptor") {
  const int before = open_descriptors();
  {
    std::vector<char> bytes(8 << 10, 'x');
    for (std::size_t size : {1UL, 88UL, sizeof(frame) - 1, sizeof(frame) + 1, bytes.size()}) {
      auto [a, b] = ends();
      const frame one = good_frame();
      std::memcpy(bytes.data(), &one, sizeof one);
      push(a, bytes.data(), size);
      CHECK(b.receive(at_once).what == receipt::garbled);
    }
    for (std::size_t files : {2UL, 8UL, 9UL, 64UL}) {
      auto [a, b] = ends();
      push_files(a, good_frame(), std::vector<int>(files, 0));
      CHECK(b.receive(at_once).what == receipt::garbled);
    }
    auto [a, b] = ends();
    push_files(a, good_frame(), {0});  // never fetched
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("where descriptors run out the limit is named, however many a frame brought") {
  // In a child, whose limit leaves this many numbers free.
  const auto told = [](rlim_t free_numbers, std::size_t files) {
    return reaped(forked([&] {
      auto [a, b] = ends();
      push_files(a, good_frame(), std::vector<int>(files, 0));
      rlimit limit = {};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      const int next = ::dup(0);
      ::close(next);
      limit.rlim_cur = static_cast<rlim_t>(next) + free_numbers;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      const received got = b.receive(at_once);
      const std::string text = no_file_text(got),
                        wanted = "RLIMIT_NOFILE of this process is " + std::to_string(limit.rlim_cur);
      if (got.what == receipt::garbled)
        return std::string(got.why).find("which is the limit") != std::string::npos ? 1 : 4;
      if (got.what != receipt::whole || got.lost_file == static_cast<bool>(got.file)) return 5;
      if (got.lost_file) return text.find(wanted) != std::string::npos ? 2 : 6;
      return 3;
    }));
  };
  CHECK(told(1, 1) == 3);
  CHECK(told(0, 1) == 2);
  for (std::size_t files = 6; files <= 12; ++files) {
    CAPTURE(files);
    CHECK(told(0, files) == 2);
    for (rlim_t free_numbers : {1U, 2U, 5U, 20U}) CHECK(told(free_numbers, files) == 1);
  }
}

TEST_CASE("whatever comes, receive returns: 200000 frames of chance, most of them nearly right") {
  std::mt19937_64 chance(20260401);
  auto [a, b] = ends();
  int whole = 0, garbled = 0;
  for (int i = 0; i < 200'000; ++i) {
    frame one = good_frame();
    if (chance() % 4 == 0) one.used = static_cast<std::uint32_t>(chance() % 1100);
    if (chance() % 4 == 0) one.used = 1024, one.left = chance() >> (chance() % 64);
    auto* const bytes = reinterpret_cast<unsigned char*>(&one);
    for (std::uint64_t flips = chance() % 3; flips > 0; --flips)
      bytes[chance() % 88] ^= static_cast<unsigned char>(1U << chance() % 8);
    const std::size_t size = chance() % 16 == 0 ? 1 + chance() % sizeof one : sizeof one;
    push(a, bytes, size);
    const received got = b.receive(at_once);
    if (got.what == receipt::whole) {
      ++whole;
      REQUIRE(got.said.body.size() <= 2048 + 1024 * 64);
    }
    if (got.what == receipt::garbled) {
      ++garbled;
      auto fresh = ends();  // as its owner does: the connection is dropped
      a = std::move(fresh.first);
      b = std::move(fresh.second);
    }
    REQUIRE(got.what != receipt::closed);
  }
  CHECK(whole > 1000);
  CHECK(garbled > 1000);
}

TEST_CASE("tokens compare whole") {
  token a = {}, b = {};
  CHECK(same(a, b));
  for (std::size_t i = 0; i < a.size(); ++i) {
    b = a;
    b[i] = std::byte{0x80};
    CHECK_FALSE(same(a, b));
  }
}
