// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's side of the doorway: how its process joins the world, gets memory that all share, and says goodbye.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/poll_until.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A joined process. All calls may be made from several threads; each ends by its deadline. They throw `comm_error`:
/// `timeout`, or `peer_failed` where the holder refuses or is gone, naming this rank, the call and the bytes. The
/// destructor only closes: the holder then counts this rank as one that left without a goodbye. A forked child asks for
/// nothing: usage_error.
class client {
 public:
  struct region {
    std::uint64_t id = 0;
    memory_segment memory;
  };
  /// The world after a shrink.
  struct renewed {
    int rank = 0;              // this one's, in the new epoch
    std::vector<int> members;  // the new ranks' numbers at the start, in order
    std::uint64_t epoch = 0;   // 0 at the start
    memory_segment control_block;
  };

  /// Joins as `rank` of `size`. `usage_error` for a rank that is none; otherwise as every call.
  [[nodiscard]] static client enter(const std::string& path, const token& secret, int rank, int size, time_point until,
                                    where at = where::current()) {
    if (rank < 0 || rank >= size) throw usage_error("rank " + std::to_string(rank) + " of " + std::to_string(size), at);
    client self(rank, size);
    const call mine{"enter", 0, until, at};
    self.state_->line = self.accept_status(path, mine);
    const message greeting = self.next(mine).said;
    if (greeting.kind != message_kind::greeting) self.refused(greeting, mine);
    const std::uint64_t started = start_time_of(::getpid(), at);
    message hello;
    hello.kind = message_kind::hello;
    hello.rank = rank;
    hello.numbers = {static_cast<std::uint64_t>(size), greeting.numbers[0], started};
    hello.secret = secret;
    // One that does not take it has a reason, which may be said already.
    static_cast<void>(self.state_->line.send(hello, until));
    received got = self.next(mine);
    if (got.said.kind != message_kind::welcome) self.refused(got.said, mine);
    self.state_->control_block = self.take(got, mine);
    return self;
  }

  /// The token that a launcher left in a pipe; reads and closes it. Throws `file_error`, at the deadline too: it is
  /// there before its reader is.
  [[nodiscard]] static token token_from_descriptor(int number, time_point until, where at = where::current()) {
    token secret = {};
    std::size_t done = 0;
    const auto refuse = [&](const std::string& why) {
      throw file_error("descriptor " + std::to_string(number) + " of BELAY_TOKEN_FD", done, why, at);
    };
    const int flags = ::fcntl(number, F_GETFL);
    if (flags < 0) refuse(error_text(errno));
    struct stat facts = {};  // a process that joins a second time may have a file of its own there by now
    if (::fstat(number, &facts) != 0 || !S_ISFIFO(facts.st_mode)) refuse("is no pipe; a process joins once");
    const unique_fd file(number);
    // Another process may read what poll has told of.
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
      pollfd entry{number, POLLIN, 0};
      if (poll_until(&entry, 1, until) == 0) refuse("no token came before the timeout");
    }
    return secret;
  }

  /// The numbers given to `enter`.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// The control segment got at `enter`.
  [[nodiscard]] memory_segment& control_block() noexcept { return state_->control_block; }
  /// Readable when the holder is gone.
  [[nodiscard]] int fd() const noexcept { return state_->line.fd(); }

  /// New memory, which the holder keeps until all who have it dropped it or are gone; peers attach it by its number.
  /// Its pages are reserved by this process, near the core it runs on. `budget_error` where there is too little.
  [[nodiscard]] region make_region(std::size_t bytes, time_point until, where at = where::current()) {
    region made;
    made.memory = memory_segment::create("belay-region", bytes, at);
    message wish;
    wish.kind = message_kind::keep;
    wish.numbers[0] = bytes;
    const call mine{"make_region", bytes, until, at};
    made.id = ask(wish, message_kind::kept, mine, made.memory.fd()).said.numbers[0];
    made.memory.forget_descriptor();
    return made;
  }

  /// A region that a peer made.
  [[nodiscard]] memory_segment attach_region(std::uint64_t id, time_point until, where at = where::current()) {
    message wish;
    wish.kind = message_kind::attach;
    wish.numbers[0] = id;
    const call mine{"attach_region", 0, until, at};
    received got = ask(wish, message_kind::attached, mine);
    memory_segment memory = take(got, mine);
    memory.forget_descriptor();
    return memory;
  }

  /// Gives one back; a mapping stays until its segment object goes.
  void drop_region(std::uint64_t id, time_point until, where at = where::current()) {
    message wish;
    wish.kind = message_kind::drop;
    wish.numbers[0] = id;
    static_cast<void>(ask(wish, message_kind::dropped, {"drop_region", 0, until, at}));
  }

  /// The last word, once; returns when the holder has it. Bodies up to 256 MiB.
  void goodbye(const exit_message& last, time_point until, where at = where::current()) {
    if (last.body.size() > connection::longest_body)
      throw usage_error("a goodbye of " + std::to_string(last.body.size()) + " bytes; 256 MiB are the limit", at);
    message word;
    word.kind = message_kind::goodbye;
    word.numbers = {static_cast<std::uint64_t>(last.how), last.kind, 0};
    word.body = last.body;
    static_cast<void>(ask(word, message_kind::farewell, {"goodbye", last.body.size(), until, at}));
  }

  /// Collective among those who are left: returns when each other rank has asked too, said goodbye, or is gone. One
  /// that is stopped beyond the holder's stall limit is killed. At the deadline the error names who is missing.
  [[nodiscard]] renewed shrink(time_point until, where at = where::current()) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until - std::chrono::steady_clock::now());
    message wish;
    wish.kind = message_kind::shrink;
    wish.numbers[0] = static_cast<std::uint64_t>(std::max<std::int64_t>(0, left.count()));
    // The holder says when it is too late, so that it and we agree on who is in; it gets a moment for that.
    const auto most = time_point::max() - until;
    const auto grace = std::min<time_point::duration>(most, std::chrono::seconds(2));
    const call mine{"shrink", 0, until + grace, at};
    received got = ask(wish, message_kind::renewed, mine);
    renewed world;
    world.rank = got.said.rank;
    world.epoch = got.said.numbers[0];
    const std::string& list = got.said.body;
    world.members.resize(list.size() / sizeof(std::int32_t));
    for (std::size_t i = 0; i < world.members.size(); ++i) {
      std::int32_t number = 0;
      std::memcpy(&number, list.data() + i * sizeof number, sizeof number);
      world.members[i] = number;
    }
    const auto mine_in_it = static_cast<std::size_t>(world.rank);
    if (world.rank < 0 || mine_in_it >= world.members.size() || world.members[mine_in_it] != rank_)
      fail(comm_fault::peer_failed, "the holder's list of survivors does not hold this rank", mine);
    world.control_block = take(got, mine);
    return world;
  }

 private:
  struct call {
    const char* name;
    std::size_t bytes;
    time_point until;
    where at;
    time_point begun = std::chrono::steady_clock::now();
  };
  // One request is under way at a time; who comes meanwhile waits here, with his deadline.
  struct shared {
    connection line;
    memory_segment control_block;
    std::mutex mutex;
    std::condition_variable free;
    bool busy = false;
    std::uint64_t ticket = 0;
  };
  class turn {
   public:
    turn(shared& state, time_point until) : state_(state) {
      std::unique_lock lock(state_.mutex);
      const auto idle = [this] { return !state_.busy; };
      if (until == time_point::max())
        state_.free.wait(lock, idle);
      else if (!state_.free.wait_until(lock, until, idle))
        return;
      mine_ = state_.busy = true;
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      if (!mine_) return;
      {
        const std::lock_guard lock(state_.mutex);
        state_.busy = false;
      }
      state_.free.notify_one();
    }
    [[nodiscard]] bool mine() const noexcept { return mine_; }

   private:
    shared& state_;
    bool mine_ = false;
  };

  client(int rank, int size) : rank_(rank), size_(size), state_(std::make_unique<shared>()) {}

  [[noreturn]] void fail(comm_fault fault, const std::string& words, const call& mine) const {
    comm_error::details what;
    what.fault = fault;
    what.operation = mine.name;
    what.bytes = mine.bytes;
    what.message = "rank " + std::to_string(rank_) + ": " + words;
    what.here = mine.at;
    what.seconds_waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - mine.begun).count();
    throw comm_error(std::move(what));
  }

  [[noreturn]] void refused(const message& no, const call& mine) const {
    if (no.kind != message_kind::refused) fail(comm_fault::peer_failed, "an answer to another question", mine);
    switch (static_cast<refusal>(no.numbers[0])) {
      case refusal::budget: throw budget_error("shared memory", no.numbers[1], no.numbers[2], mine.at);
      case refusal::late: fail(comm_fault::timeout, "still waited for: " + no.body, mine);
      default: fail(comm_fault::peer_failed, "refused: " + no.body, mine);
    }
  }

  [[nodiscard]] connection accept_status(const std::string& path, const call& mine) const {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof name.sun_path) {
      throw usage_error("'" + path + "' is no path of a doorway: a socket's path has 1 to 107 characters, this has " +
                            std::to_string(path.size()),
                        mine.at);
    }
    std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
    unique_fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) throw file_error(path, 0, "socket: " + error_text(errno), mine.at);
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
      if (errno == EINTR) continue;
      // EAGAIN: the queue at the door is full, and there is nothing to poll for.
      if (errno != EAGAIN) fail(comm_fault::peer_failed, "no doorway at " + path + ": " + std::strerror(errno), mine);
      if (std::chrono::steady_clock::now() >= mine.until) fail(comm_fault::timeout, "a long queue at " + path, mine);
      const timespec millisecond{0, 1'000'000};
      ::nanosleep(&millisecond, nullptr);
    }
    // Before the token is said: the one behind the door is of this user.
    if (peer_of(socket.get()).user != ::geteuid())
      fail(comm_fault::peer_failed, "the doorway at " + path + " is another user's", mine);
    return connection(std::move(socket));
  }

  // The next message, whatever it is.
  [[nodiscard]] received next(const call& mine) {
    received got = state_->line.receive(mine.until);
    if (got.what == receipt::nothing) fail(comm_fault::timeout, "no answer of the holder", mine);
    if (got.what == receipt::closed) fail(comm_fault::peer_failed, "the holder is gone", mine);
    if (got.what == receipt::garbled) fail(comm_fault::peer_failed, std::string("the holder said ") + got.why, mine);
    return got;
  }

  // Sends a request and waits for its answer. Answers to requests that were given up are thrown away.
  [[nodiscard]] received ask(message& request, message_kind expected, const call& mine, int file = -1) {
    if (::getpid() != process_) {
      throw usage_error(std::string(mine.name) + ": this process is a forked child of rank " + std::to_string(rank_) +
                            ", and no rank",
                        mine.at);
    }
    const turn now(*state_, mine.until);
    if (!now.mine()) fail(comm_fault::timeout, "another request of this rank is under way", mine);
    request.rank = rank_;
    request.ticket = ++state_->ticket;
    if (!state_->line.send(request, mine.until, file)) {
      const bool late = std::chrono::steady_clock::now() >= mine.until;
      // Half a message may be out: nothing that follows would be understood. Not closed, for others may poll it.
      state_->line.stop_sending();
      if (late) fail(comm_fault::timeout, "the holder does not listen", mine);
      fail(comm_fault::peer_failed, "the holder is gone", mine);
    }
    while (true) {
      received got = next(mine);
      if (got.said.ticket < request.ticket) {
        give_back(got.said, mine);
        continue;
      }
      if (got.said.kind != expected || got.said.ticket != request.ticket) refused(got.said, mine);
      return got;
    }
  }

  // A region that came too late for who had asked is not kept.
  void give_back(const message& late, const call& mine) {
    if (late.kind != message_kind::kept && late.kind != message_kind::attached) return;
    message drop;
    drop.kind = message_kind::drop;
    drop.rank = rank_;
    drop.numbers[0] = late.numbers[0];
    static_cast<void>(state_->line.send(drop, mine.until));
  }

  // The segment that came with an answer, of the size the answer says.
  [[nodiscard]] memory_segment take(received& got, const call& mine) const {
    if (!got.file) fail(comm_fault::peer_failed, "the answer: " + no_file_text(got), mine);
    return memory_segment::attach(got.file.release(), static_cast<std::size_t>(got.said.numbers[1]), mine.at);
  }

  int rank_;
  int size_;
  pid_t process_ = ::getpid();
  std::unique_ptr<shared> state_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
