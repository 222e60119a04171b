// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Who has knocked at a doorway and not yet said, or not yet proved, which rank he is.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/rank_record.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Lets in whoever has the token, is of this user, is the process that he says, and whose seat is free. Each
/// connection gets a number of its own that its hello must hold: one that was said before opens nothing.
class handshake {
 public:
  using clock = std::chrono::steady_clock;

  /// Descriptors that are missing may become free: where other threads of this process use them too.
  static constexpr clock::duration shortage_limit = std::chrono::seconds(1);

  struct newcomer {
    int rank = 0;
    connection line;
    watched_process who;
  };

  /// `hello_limit`: who says nothing for longer is shown out.
  handshake(bootstrap_socket& door, clock::duration hello_limit, where at)
      : door_(&door), hello_limit_(hello_limit), at_(at) {}

  /// The listening socket, or -1: closed, or nobody can be let in now.
  [[nodiscard]] int listener() const noexcept { return clock::now() < pause_ ? -1 : door_->listener(); }
  [[nodiscard]] std::size_t waiting() const noexcept { return visitors_.size(); }
  [[nodiscard]] int fd(std::size_t which) const noexcept { return visitors_[which].line.fd(); }

  /// The next time at which something is to be done without being told.
  [[nodiscard]] time_point next(time_point until) const noexcept {
    if (pause_ > clock::now()) until = std::min(until, pause_);
    for (const visitor& one : visitors_) until = std::min(until, one.until);
    return until;
  }

  /// Somebody knocked: greets him, unless he is of another user. Throws `file_error` where for `shortage_limit` no
  /// descriptor was free for him.
  void open(std::size_t ranks) {
    accepted knocked = door_->answer();
    if (knocked.what == accept_status::no_room) {
      const time_point now = clock::now();
      if (!short_since_) short_since_ = now;
      if (now - *short_since_ >= shortage_limit) {
        throw file_error(door_->path(), 0, "a rank cannot be let in: accept: " + error_text(knocked.why), at_);
      }
      // Without a pause the poll would tell of him again at once, and again.
      pause_ = now + std::chrono::milliseconds(10);
      return;
    }
    short_since_.reset();
    if (knocked.what != accept_status::ours) return;
    // Taken out by show_out; until then places in the list mean what the poll was told.
    if (visitors_.size() >= ranks + most_beyond) visitors_.front().line.close();
    visitor added;
    added.line = std::move(knocked.line);
    added.line.limit_body(0);
    added.pid = knocked.who.pid;
    fill_random(added.nonce, at_);
    added.until = clock::now() + hello_limit_;
    message greeting;
    greeting.kind = message_kind::greeting;
    greeting.numbers[0] = added.nonce;
    if (added.line.send(greeting, at_once)) visitors_.push_back(std::move(added));
  }

  /// A visitor said something: a newcomer, or he was refused in words.
  [[nodiscard]] std::optional<newcomer> hear(std::size_t which, const std::vector<rank_record>& seats) {
    visitor& who = visitors_[which];
    if (!who.line) return std::nullopt;
    received got = who.line.receive(at_once);
    if (got.what == receipt::nothing) return std::nullopt;
    connection line = std::move(who.line);
    if (got.what != receipt::whole) return std::nullopt;
    std::string wrong = why_not(who, got.said, seats);
    if (wrong.empty()) {
      auto found = watched_process::watch(who.pid, at_);
      if (found && found->start_time() == got.said.numbers[2])
        return newcomer{got.said.rank, std::move(line), std::move(*found)};
      wrong = "the process is not the one that it says";
    }
    refuse(line, wrong);
    return std::nullopt;
  }

  /// Those who waited too long, who left, and, once the door is closed, all.
  void show_out() {
    const time_point now = clock::now();
    const auto over = [&](visitor& one) {
      if (one.line && door_->closed()) refuse(one.line, "all ranks have joined");
      return !one.line || door_->closed() || now >= one.until;
    };
    visitors_.erase(std::remove_if(visitors_.begin(), visitors_.end(), over), visitors_.end());
  }

 private:
  struct visitor {
    connection line;
    pid_t pid = 0;
    std::uint64_t nonce = 0;
    time_point until;
  };
  static constexpr std::size_t most_beyond = 64;  // visitors beyond one for each rank

  static void refuse(connection& line, const std::string& words) {
    static_cast<void>(line.send(refused(0, refusal::words, words), at_once));
    line.close();
  }

  [[nodiscard]] std::string why_not(const visitor& who, const message& hello,
                                    const std::vector<rank_record>& seats) const {
    if (hello.kind != message_kind::hello) return "the first message is no hello";
    if (!same(hello.secret, door_->secret())) return "a wrong token";
    if (hello.numbers[1] != who.nonce) return "a hello that was said before";
    if (who.pid <= 0) return "a process of another pid namespace";
    const std::string rank = "rank " + std::to_string(hello.rank);
    if (hello.numbers[0] != seats.size())
      return rank + " says " + std::to_string(hello.numbers[0]) + " ranks, there are " + std::to_string(seats.size());
    if (hello.rank < 0 || static_cast<std::size_t>(hello.rank) >= seats.size())
      return rank + " of " + std::to_string(seats.size());
    const rank_record& wanted = seats[static_cast<std::size_t>(hello.rank)];
    if (wanted.joined) return rank + " has joined already";
    if (wanted.over) return rank + " is gone already";
    return {};
  }

  bootstrap_socket* door_;
  clock::duration hello_limit_;
  where at_;
  std::vector<visitor> visitors_;
  time_point pause_;
  std::optional<time_point> short_since_;  // of descriptors
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
