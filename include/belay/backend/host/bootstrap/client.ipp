// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Requests of a rank to the coordinator, one at a time, and their answers.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

struct client::request {
  const char* name;
  std::size_t bytes;
  time_point until;
  where at;
  const time_source* clock;
  time_point begun = time_by(clock);
};

struct client::shared {
  connection socket;
  memory_segment control_block;
  std::mutex mutex;
  std::condition_variable free;
  bool busy = false;  // one request is under way at a time
  std::uint64_t ticket = 0;
};

// Waits, until a deadline, for the request that is under way.
class client::request_lock {
 public:
  request_lock(shared& state, time_point until, const time_source* clock) : state_(state) {
    std::unique_lock lock(state_.mutex);
    const auto idle = [this] { return !state_.busy; };
    if (until == largest_value<time_point>) state_.free.wait(lock, idle);
    while (!idle()) {
      const auto left = time_to_sleep(until, clock);
      if (left.count() == 0) return;
      state_.free.wait_for(lock, left, idle);
    }
    owned_ = state_.busy = true;
  }
  request_lock(const request_lock&) = delete;
  request_lock& operator=(const request_lock&) = delete;
  ~request_lock() {
    if (!owned_) return;
    {
      const std::lock_guard lock(state_.mutex);
      state_.busy = false;
    }
    state_.free.notify_one();
  }
  [[nodiscard]] bool owned() const noexcept { return owned_; }

 private:
  shared& state_;
  bool owned_ = false;
};

BELAY_DECL client::client(int rank, int size, const time_source* clock)
    : rank_(rank), size_(size), clock_(clock), process_(::getpid()), state_(std::make_unique<shared>()) {}
BELAY_DECL client::client(client&&) noexcept = default;
BELAY_DECL client::~client() = default;

BELAY_DECL memory_segment& client::control_block() noexcept { return state_->control_block; }
BELAY_DECL int client::fd() const noexcept { return state_->socket.fd(); }

BELAY_DECL client client::enter(const std::string& path, const token& secret, int rank, int size, time_point until,
                                where at, const time_source* clock) {
  if (rank < 0 || rank >= size) throw usage_error("rank " + std::to_string(rank) + " of " + std::to_string(size), at);
  client self(rank, size, clock);
  const request from{"enter", 0, until, at, clock};
  self.state_->socket = self.connect(path, from);
  const message greeting = self.next(from).said;
  if (greeting.kind != message_kind::greeting) self.throw_refusal(greeting, from);
  message hello;
  hello.kind = message_kind::hello;
  hello.rank = rank;
  hello.numbers = {static_cast<std::uint64_t>(size), greeting.numbers[0], start_time_of(::getpid(), at)};
  hello.secret = secret;
  // A coordinator that does not take it may have sent its reason already.
  static_cast<void>(self.state_->socket.send(hello, until));
  received got = self.next(from);
  if (got.said.kind != message_kind::welcome) self.throw_refusal(got.said, from);
  self.state_->control_block = self.take_segment(got, from);
  return self;
}

BELAY_DECL token client::token_from_descriptor(int number, time_point until, where at, const time_source* clock) {
  token secret = {};
  std::size_t done = 0;
  const auto refuse = [&](const std::string& why) {
    throw file_error("descriptor " + std::to_string(number) + " of BELAY_BOOTSTRAP_SECRET_FD", done, why, at);
  };
  const int flags = ::fcntl(number, F_GETFL);
  if (flags < 0) refuse(error_text(errno));
  struct stat facts = {};  // a process that joins a second time may have a file of its own there by now
  if (::fstat(number, &facts) != 0 || !S_ISFIFO(facts.st_mode)) refuse("is no pipe; a process joins once");
  const unique_fd file(number);
  // Another process may read what poll has reported.
  ::fcntl(number, F_SETFL, flags | O_NONBLOCK);
  while (done < secret.size()) {
    const ssize_t got = ::read(number, secret.data() + done, secret.size() - done);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
      continue;
    }
    if (got == 0) refuse("the token is not there (any more)");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) refuse(error_text(errno));
    if (!wait_for_events(number, POLLIN, until, clock)) refuse("no token came before the timeout");
  }
  return secret;
}

BELAY_DECL client::region client::make_region(std::size_t bytes, time_point until, where at) {
  region made;
  made.memory = memory_segment::create("belay-region", bytes, at);
  message wish;
  wish.kind = message_kind::keep;
  wish.numbers[0] = bytes;
  made.id = ask(wish, message_kind::kept, {"make_region", bytes, until, at, clock_}, made.memory.fd()).said.numbers[0];
  made.memory.forget_descriptor();
  return made;
}

BELAY_DECL memory_segment client::attach_region(std::uint64_t id, time_point until, where at) {
  message wish;
  wish.kind = message_kind::attach;
  wish.numbers[0] = id;
  const request from{"attach_region", 0, until, at, clock_};
  received got = ask(wish, message_kind::attached, from);
  memory_segment memory = take_segment(got, from);
  memory.forget_descriptor();
  return memory;
}

BELAY_DECL void client::drop_region(std::uint64_t id, time_point until, where at) {
  message wish;
  wish.kind = message_kind::drop;
  wish.numbers[0] = id;
  static_cast<void>(ask(wish, message_kind::dropped, {"drop_region", 0, until, at, clock_}));
}

BELAY_DECL void client::goodbye(const exit_message& last, time_point until, where at) {
  if (last.body.size() > connection::longest_body)
    throw usage_error("a goodbye of " + std::to_string(last.body.size()) + " bytes; 256 MiB are the limit", at);
  message word;
  word.kind = message_kind::goodbye;
  word.numbers = {static_cast<std::uint64_t>(last.how), last.kind, 0};
  word.body = last.body;
  static_cast<void>(ask(word, message_kind::farewell, {"goodbye", last.body.size(), until, at, clock_}));
}

BELAY_DECL client::renewed client::shrink(time_point until, where at) {
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - time_by(clock_));
  message wish;
  wish.kind = message_kind::shrink;
  wish.numbers[0] = static_cast<std::uint64_t>(greater_of<std::int64_t>(0, left.count()));
  // The coordinator says when it is too late, so that both agree on the members; it gets some time for that.
  const auto most = largest_value<time_point> - until;
  const request from{"shrink", 0, until + lesser_of<time_point::duration>(most, std::chrono::seconds(2)), at, clock_};
  received got = ask(wish, message_kind::renewed, from);
  renewed world;
  world.rank = got.said.rank;
  world.epoch = got.said.numbers[0];
  std::vector<std::int32_t> list(got.said.body.size() / sizeof(std::int32_t));
  if (!list.empty()) std::memcpy(list.data(), got.said.body.data(), list.size() * sizeof list[0]);
  world.members.assign(list.begin(), list.end());
  const auto number = static_cast<std::size_t>(world.rank);
  if (world.rank < 0 || number >= world.members.size() || world.members[number] != rank_)
    fail(comm_fault::peer_failed, "the coordinator's list of survivors does not hold this rank", from);
  world.control_block = take_segment(got, from);
  return world;
}

BELAY_DECL void client::fail(comm_fault fault, const std::string& words, const request& from) const {
  comm_error::details what;
  what.fault = fault;
  what.operation = from.name;
  what.bytes = from.bytes;
  what.message = "rank " + std::to_string(rank_) + ": " + words;
  what.here = from.at;
  what.seconds_waited = std::chrono::duration<double>(time_by(from.clock) - from.begun).count();
  throw comm_error(std::move(what));
}

BELAY_DECL void client::throw_refusal(const message& no, const request& from) const {
  if (no.kind != message_kind::refused) fail(comm_fault::peer_failed, "an answer to another question", from);
  switch (static_cast<refusal>(no.numbers[0])) {
    case refusal::budget: throw budget_error("shared memory", no.numbers[1], no.numbers[2], from.at);
    case refusal::late: fail(comm_fault::timeout, "still waited for: " + no.body, from);
    default: fail(comm_fault::peer_failed, "refused: " + no.body, from);
  }
}

BELAY_DECL connection client::connect(const std::string& path, const request& from) const {
  const std::string wrong = wrong_socket_path(path);
  if (!wrong.empty()) throw usage_error("'" + path + "' is no bootstrap socket: " + wrong, from.at);
  const sockaddr_un name = socket_address(path);
  unique_fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw file_error(path, 0, "socket: " + error_text(errno), from.at);
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    if (errno == EINTR) continue;
    // EAGAIN: the socket's backlog is full, and there is nothing to poll for.
    if (errno != EAGAIN)
      fail(comm_fault::peer_failed, "no bootstrap socket at " + path + ": " + std::strerror(errno), from);
    if (time_by(clock_) >= from.until) fail(comm_fault::timeout, "a long queue at " + path, from);
    const timespec millisecond{0, 1'000'000};
    ::nanosleep(&millisecond, nullptr);
  }
  // Before the token is sent: the listening process is of this user.
  if (peer_of(socket.get()).user != ::geteuid())
    fail(comm_fault::peer_failed, "the bootstrap socket at " + path + " is another user's", from);
  return connection(std::move(socket), clock_);
}

// The next message, of any kind.
BELAY_DECL received client::next(const request& from) {
  received got = state_->socket.receive(from.until);
  if (got.what == receipt::nothing) fail(comm_fault::timeout, "no answer of the coordinator", from);
  if (got.what == receipt::closed) fail(comm_fault::peer_failed, "the coordinator is gone", from);
  if (got.what == receipt::garbled)
    fail(comm_fault::peer_failed, std::string("the coordinator said ") + got.why, from);
  return got;
}

// Sends a request and waits for its answer. Answers to requests that were given up are thrown away.
BELAY_DECL received client::ask(message& wish, message_kind expected, const request& from, int file) {
  if (::getpid() != process_) {
    throw usage_error(std::string(from.name) + ": this process is a forked child of rank " + std::to_string(rank_) +
                          ", and no rank",
                      from.at);
  }
  const request_lock lock(*state_, from.until, clock_);
  if (!lock.owned()) fail(comm_fault::timeout, "another request of this rank is under way", from);
  wish.rank = rank_;
  wish.ticket = ++state_->ticket;
  if (!state_->socket.send(wish, from.until, file)) {
    const bool late = time_by(clock_) >= from.until;
    // Half a message may be sent: nothing after it would be understood. Not closed, for other threads may poll it.
    state_->socket.stop_sending();
    if (late) fail(comm_fault::timeout, "the coordinator does not listen", from);
    fail(comm_fault::peer_failed, "the coordinator is gone", from);
  }
  while (true) {
    received got = next(from);
    if (got.said.ticket < wish.ticket) {
      give_back(got.said, from);
      continue;
    }
    if (got.said.kind != expected || got.said.ticket != wish.ticket) throw_refusal(got.said, from);
    return got;
  }
}

// A region that came after its request was given up is not kept.
BELAY_DECL void client::give_back(const message& late, const request& from) {
  if (late.kind != message_kind::kept && late.kind != message_kind::attached) return;
  message drop;
  drop.kind = message_kind::drop;
  drop.rank = rank_;
  drop.numbers[0] = late.numbers[0];
  static_cast<void>(state_->socket.send(drop, from.until));
}

// The segment that came with an answer, of the size that the answer says.
BELAY_DECL memory_segment client::take_segment(received& got, const request& from) const {
  if (!got.file) fail(comm_fault::peer_failed, "the answer: " + no_file_text(got), from);
  return memory_segment::attach(got.file.release(), static_cast<std::size_t>(got.said.numbers[1]), from.at);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
