// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Greeting, hello, and the reasons why a hello is refused.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "belay/backend/host/bootstrap/handshake.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL time_point handshake::next(time_point until) const noexcept {
  if (pause_ > std::chrono::steady_clock::now()) until = lesser_of(until, pause_);
  for (const pending_connection& one : pending_) until = lesser_of(until, one.until);
  return until;
}

BELAY_DECL void handshake::accept(std::size_t ranks) {
  accepted got = listener_->accept();
  const time_point now = std::chrono::steady_clock::now();
  if (got.what == accept_status::no_descriptor) {
    if (!short_since_) short_since_ = now;
    if (now - *short_since_ >= shortage_limit) {
      throw file_error(listener_->path(), 0, "a rank cannot be let in: accept: " + error_text(got.error), at_);
    }
    // Without a pause the next poll would report the same connection at once.
    pause_ = now + std::chrono::milliseconds(10);
    return;
  }
  short_since_.reset();
  if (got.what != accept_status::ours) return;
  // `drop_expired` removes it; until then the indices are those that the poll was given.
  if (pending_.size() >= ranks + most_beyond) pending_.front().socket.close();
  pending_connection added;
  added.socket = std::move(got.socket);
  added.socket.limit_body(0);
  added.pid = got.from.pid;
  fill_random(&added.nonce, sizeof added.nonce, at_);
  added.until = now + hello_limit_;
  message greeting;
  greeting.kind = message_kind::greeting;
  greeting.numbers[0] = added.nonce;
  if (added.socket.send(greeting, at_once)) pending_.push_back(std::move(added));
}

BELAY_DECL void refuse_and_close(connection& socket, const std::string& words) {
  static_cast<void>(socket.send(refused(0, refusal::words, words), at_once));
  socket.close();
}

BELAY_DECL std::optional<handshake::joined_process> handshake::read_hello(std::size_t which,
                                                                          const std::vector<rank_record>& records) {
  pending_connection& from = pending_[which];
  if (!from.socket) return std::nullopt;
  received got = from.socket.receive(at_once);
  if (got.what == receipt::nothing) return std::nullopt;
  connection socket = std::move(from.socket);
  if (got.what != receipt::whole) return std::nullopt;
  std::string wrong = why_not(from, got.said, records);
  if (wrong.empty()) {
    auto found = watched_process::watch(from.pid, at_);
    if (found && found->start_time() == got.said.numbers[2])
      return joined_process{got.said.rank, std::move(socket), std::move(*found)};
    wrong = "the process is not the one that it says";
  }
  refuse_and_close(socket, wrong);
  return std::nullopt;
}

BELAY_DECL void handshake::drop_expired() {
  const time_point now = std::chrono::steady_clock::now();
  const auto over = [&](pending_connection& one) {
    if (one.socket && listener_->closed()) refuse_and_close(one.socket, "all ranks have joined");
    return !one.socket || listener_->closed() || now >= one.until;
  };
  pending_.erase(std::remove_if(pending_.begin(), pending_.end(), over), pending_.end());
}

BELAY_DECL std::string handshake::why_not(const pending_connection& from, const message& hello,
                                          const std::vector<rank_record>& records) const {
  if (hello.kind != message_kind::hello) return "the first message is no hello";
  if (!same(hello.secret, listener_->secret())) return "a wrong token";
  if (hello.numbers[1] != from.nonce) return "a hello that was said before";
  if (from.pid <= 0) return "a process of another pid namespace";
  const std::string rank = "rank " + std::to_string(hello.rank);
  if (hello.numbers[0] != records.size())
    return rank + " says " + std::to_string(hello.numbers[0]) + " ranks, there are " + std::to_string(records.size());
  if (hello.rank < 0 || static_cast<std::size_t>(hello.rank) >= records.size())
    return rank + " of " + std::to_string(records.size());
  const rank_record& wanted = records[static_cast<std::size_t>(hello.rank)];
  if (wanted.joined) return rank + " has joined already";
  if (wanted.over) return rank + " is gone already";
  return {};
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
