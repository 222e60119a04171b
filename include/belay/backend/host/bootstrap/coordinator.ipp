// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The coordinator's loop: joins, requests, exits, and the agreement of survivors. The regions that it keeps, and the
// ranks that hold each.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/membership/membership.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL std::uint64_t region_store::keep(unique_fd file, std::size_t bytes, int rank) {
  stored_segment added;
  added.file = std::move(file);
  added.bytes = bytes;
  added.holders.push_back(rank);
  const std::uint64_t region = next_++;
  regions_.emplace(region, std::move(added));
  return region;
}

[[gnu::cold]] BELAY_DECL const region_store::stored_segment* region_store::add(std::uint64_t region, int rank) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return nullptr;
  found->second.holders.push_back(rank);
  return &found->second;
}

[[gnu::cold]] BELAY_DECL bool region_store::drop(std::uint64_t region, int rank) {
  const auto found = regions_.find(region);
  if (found == regions_.end()) return false;
  std::vector<int>& holders = found->second.holders;
  const auto mine = std::find(holders.begin(), holders.end(), rank);
  if (mine == holders.end()) return false;
  holders.erase(mine);
  if (holders.empty()) regions_.erase(found);
  return true;
}

[[gnu::cold]] BELAY_DECL void region_store::forget(int rank) {
  for (auto next = regions_.begin(); next != regions_.end();) {
    std::vector<int>& holders = next->second.holders;
    holders.erase(std::remove(holders.begin(), holders.end(), rank), holders.end());
    next = holders.empty() ? regions_.erase(next) : std::next(next);
  }
}

[[gnu::cold]] BELAY_DECL std::pair<message, int> region_store::answer(int rank, received request) {
  message says;
  says.ticket = request.said.ticket;
  says.rank = rank;
  const std::uint64_t region = request.said.numbers[0];
  int file = -1;
  const auto no = [&](const std::string& words) { return refused(says.ticket, refusal::words, words); };
  if (request.said.kind == message_kind::keep) {
    if (!request.file) return {no(no_file_text(request)), -1};
    try {
      const std::size_t bytes = memory_segment::sealed_size(request.file.get());
      says.kind = message_kind::kept;
      says.numbers = {keep(std::move(request.file), bytes, rank), bytes, 0};
    } catch (const file_error& wrong) {
      return {no(wrong.what()), -1};
    }
  } else if (request.said.kind == message_kind::attach) {
    const stored_segment* const found = add(region, rank);
    if (found == nullptr) return {no("there is no region " + std::to_string(region)), -1};
    says.kind = message_kind::attached;
    says.numbers = {region, found->bytes, 0};
    file = found->file.get();
  } else {
    if (!drop(region, rank)) return {no("region " + std::to_string(region) + " is not held"), -1};
    says.kind = message_kind::dropped;
  }
  return {std::move(says), file};
}

BELAY_DECL coordinator::coordinator(bootstrap_socket& socket, int ranks, memory_segment& control_block,
                                    world_events& world, coordinator_options options, where at)
    : socket_(&socket),
      control_(&control_block),
      world_(&world),
      clock_(options.clock),
      at_(at),
      handshake_(socket, options.hello_limit, options.clock, at),
      stalls_(options.stall_limit, time_by(options.clock)) {
  if (ranks < 1) throw usage_error("a coordinator of " + std::to_string(ranks) + " ranks", at);
  records_.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) members_.push_back(rank);
}

BELAY_DECL void coordinator::expect(int rank, pid_t child) {
  rank_record& of = record(rank);
  of.child = watched_process::watch(child, at_);
  if (!of.child) throw usage_error("process " + std::to_string(child) + " is no child of this one", at_);
}

BELAY_DECL void coordinator::run() {
  while (!all_over()) step(largest_value<time_point>);
}

BELAY_DECL bool coordinator::serve_until_joined(time_point until) {
  const auto decided = [](const rank_record& one) { return one.joined || one.over; };
  while (!std::all_of(records_.begin(), records_.end(), decided) && time_by(clock_) < until) {
    step(until);
  }
  return all_joined();
}

// What `agree` asks for. A rank that is stalled meanwhile is killed, and seen dead before.
struct coordinator::arbiter {
  coordinator* self;

  [[nodiscard]] const std::vector<int>& members() const noexcept { return self->members_; }
  [[nodiscard]] bool asks(int rank) const { return self->record(rank).shrink.has_value(); }
  [[nodiscard]] bool has_left(int rank) const { return self->record(rank).left(); }
  void hurry() const { self->kill_stalled(); }
  [[nodiscard]] bool find_dead(const std::vector<int>& ranks) const { return self->find_dead(ranks); }
  [[nodiscard]] bool renew(const std::vector<int>& survivors) const { return self->renew(survivors); }
  void tell(const std::vector<int>& survivors) const { self->tell(survivors); }
};

BELAY_DECL void coordinator::step(time_point until) {
  gather_poll_entries();
  if (poll_until(entries_.data(), entries_.size(), next_deadline(until), clock_) <= 0) {
    for (pollfd& entry : entries_) entry.revents = 0;
  }
  world_->on_poll(std::span<const pollfd>(entries_).subspan(tags_.size()));
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    if (entries_[i].revents != 0) serve(tags_[i]);
  }
  const time_point now = time_by(clock_);
  handshake_.drop_expired();
  stalls_.look(records_, now, [this](int rank) { world_->on_stall(rank); });
  refuse_late(now);
  agree(arbiter{this}, survivors_);
}

BELAY_DECL bool coordinator::all_joined() const noexcept {
  return std::all_of(records_.begin(), records_.end(), [](const rank_record& one) { return one.joined; });
}
BELAY_DECL bool coordinator::all_over() const noexcept {
  return std::all_of(records_.begin(), records_.end(), [](const rank_record& one) { return one.finished(); });
}
BELAY_DECL bool coordinator::send_signal(int rank, int number) const noexcept {
  const watched_process* const living = records_[static_cast<std::size_t>(rank)].alive();
  return living != nullptr && living->send_signal(number);
}

BELAY_DECL void coordinator::gather_poll_entries() {
  entries_.clear();
  tags_.clear();
  const auto add = [this](int file, source what, std::size_t index) {
    entries_.push_back({file, POLLIN, 0});
    tags_.push_back({what, index});
  };
  if (const int file = handshake_.listener(); file >= 0) add(file, source::listener, 0);
  for (std::size_t i = 0; i < handshake_.pending(); ++i) add(handshake_.fd(i), source::pending, i);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const rank_record& one = records_[i];
    if (one.socket) add(one.socket.fd(), source::connection, i);
    if (one.child && !one.child_gone) add(one.child->fd(), source::child, i);
    if (one.member && !one.over) add(one.member->fd(), source::member, i);
  }
  world_->add_poll_entries(entries_);
}

BELAY_DECL time_point coordinator::next_deadline(time_point until) const noexcept {
  until = handshake_.next(lesser_of(until, stalls_.next()));
  for (const rank_record& one : records_) {
    if (one.shrink) until = lesser_of(until, one.shrink->until);
  }
  return until;
}

BELAY_DECL void coordinator::serve(tag from) {
  const int rank = static_cast<int>(from.index);
  switch (from.what) {
    case source::listener: return handshake_.accept(records_.size());
    case source::pending:
      if (auto joined = handshake_.read_hello(from.index, records_)) admit(std::move(*joined));
      return;
    case source::connection: return read_messages(rank, 64);
    case source::child: return on_child_exit(rank);
    case source::member: return on_member_exit(rank);
  }
}

// --- joins

BELAY_DECL void coordinator::admit(handshake::joined_process from) {
  rank_record& to = record(from.rank);
  to.joined = true;
  to.socket = std::move(from.socket);
  to.socket.limit_body(connection::longest_body);
  const pid_t pid = from.process.pid();
  if (!to.child || to.child->pid() != pid) to.member = std::move(from.process);
  world_->on_join(from.rank, pid);
  message welcome;
  welcome.kind = message_kind::welcome;
  welcome.rank = from.rank;
  welcome.numbers = {epoch_, control_->size_bytes(), 0};
  reply(to, welcome, control_->fd());
  if (all_joined()) socket_->close();
}

// --- requests

// Never waits for a rank: one that does not take an answer gets no more. Its messages are still read: it may be dead,
// and its last ones queued.
BELAY_DECL void coordinator::reply(rank_record& to, const message& what, int file) {
  if (!to.socket || to.socket.send(what, at_once, file)) return;
  to.deaf = true;
  to.socket.stop_sending();
}

BELAY_DECL void coordinator::read_messages(int rank, std::size_t most) {
  rank_record& from = record(rank);
  for (std::size_t i = 0; i < most && from.socket; ++i) {
    received got = from.socket.receive(at_once);
    if (got.what == receipt::nothing) return;
    if (got.what != receipt::whole) return from.socket.close();
    handle(rank, from, std::move(got));
  }
}

BELAY_DECL void coordinator::handle(int rank, rank_record& from, received got) {
  const std::uint64_t number = got.said.numbers[0];
  switch (got.said.kind) {
    case message_kind::keep:
    case message_kind::attach:
    case message_kind::drop: {
      const auto [answer, file] = regions_.answer(rank, std::move(got));
      return reply(from, answer, file);
    }
    case message_kind::goodbye: {
      if (from.said_goodbye || number > 1) return from.socket.close();
      from.said_goodbye = true;
      from.shrink.reset();
      world_->on_exit_message(
          rank, exit_message{static_cast<exit_message::outcome>(number), got.said.numbers[1], got.said.body});
      message farewell;
      farewell.kind = message_kind::farewell;
      farewell.ticket = got.said.ticket;
      return reply(from, farewell);
    }
    case message_kind::shrink: {
      if (from.said_goodbye || from.shrink) {
        return reply(from, refused(got.said.ticket, refusal::words, "one wish at a time, and none after goodbye"));
      }
      const std::uint64_t longest = 365ULL * 24 * 3600 * 1'000'000;
      const auto limit = std::chrono::microseconds(static_cast<std::int64_t>(lesser_of(number, longest)));
      from.shrink = rank_record::shrink_request{got.said.ticket, time_by(clock_) + limit};
      return;
    }
    default: return from.socket.close();
  }
}

// --- exits

inline constexpr std::size_t last_messages = 1 << 20;  // of a dead process that are still read

BELAY_DECL void coordinator::on_child_exit(int rank) {
  rank_record& of = record(rank);
  if (of.child_gone) return;
  const bool is_rank = !of.member;
  if (is_rank) read_messages(rank, last_messages);
  of.child_gone = true;
  const exit_status how = of.child->reap();
  if (is_rank) close_rank(rank, of);
  world_->on_child_exit(rank, how);
  if (is_rank) world_->on_exit(rank, how);
}

BELAY_DECL void coordinator::on_member_exit(int rank) {
  rank_record& of = record(rank);
  if (of.over) return;
  read_messages(rank, last_messages);
  const exit_status how = of.member->reap();
  close_rank(rank, of);
  world_->on_exit(rank, how);
}

BELAY_DECL void coordinator::close_rank(int rank, rank_record& from) {
  from.over = true;
  from.socket.close();
  from.shrink.reset();
  regions_.forget(rank);
}

// --- survivors

BELAY_DECL void coordinator::refuse_late(time_point now) {
  for (rank_record& from : records_) {
    if (!from.shrink || now < from.shrink->until) continue;
    std::string missing;
    for (int rank : members_) {
      const rank_record& other = record(rank);
      if (!other.left() && !other.shrink) missing.append(missing.empty() ? "" : ", ").append(other.text(rank));
    }
    reply(from, refused(from.shrink->ticket, refusal::late, missing));
    from.shrink.reset();
  }
}

// Whether one of them died meanwhile; its exit has been served then.
BELAY_DECL bool coordinator::find_dead(const std::vector<int>& ranks) {
  bool found = false;
  for (int rank : ranks) {
    const watched_process* const living = record(rank).alive();
    if (living == nullptr || !living->gone()) continue;
    found = true;
    record(rank).member ? on_member_exit(rank) : on_child_exit(rank);
  }
  return found;
}

BELAY_DECL bool coordinator::renew(const std::vector<int>& survivors) {
  try {
    fresh_ = &world_->renew(survivors);
    return true;
  } catch (const budget_error& little) {
    for (int rank : survivors) {
      rank_record& to = record(rank);
      reply(to, refused(to.shrink->ticket, refusal::budget, little.what(), little.requested_bytes(),
                        little.available_bytes()));
      to.shrink.reset();
    }
    return false;
  }
}

BELAY_DECL void coordinator::tell(const std::vector<int>& survivors) {
  control_ = fresh_;
  members_ = survivors;
  ++epoch_;
  message news;
  news.kind = message_kind::renewed;
  news.numbers = {epoch_, fresh_->size_bytes(), 0};
  const std::vector<std::int32_t> list(survivors.begin(), survivors.end());
  news.body.assign(reinterpret_cast<const char*>(list.data()), list.size() * sizeof list[0]);
  for (std::size_t i = 0; i < survivors.size(); ++i) {
    rank_record& to = record(survivors[i]);
    news.rank = static_cast<std::int32_t>(i);
    news.ticket = to.shrink->ticket;
    to.shrink.reset();
    reply(to, news, fresh_->fd());
  }
}

BELAY_DECL void coordinator::kill_stalled() {
  for (int rank : members_) {
    rank_record& of = record(rank);
    if (of.left() || of.shrink || !of.told_stalled) continue;
    const watched_process* const living = of.alive();
    // Reported some time ago: it may run again.
    if (living == nullptr || !living->stopped()) continue;
    if (!living->send_signal(SIGKILL) && !living->gone()) of.beyond_reach = true;
  }
}

BELAY_DECL time_point handshake::next(time_point until) const noexcept {
  if (pause_ > time_by(clock_)) until = lesser_of(until, pause_);
  for (const pending_connection& one : pending_) until = lesser_of(until, one.until);
  return until;
}

BELAY_DECL void handshake::accept(std::size_t ranks) {
  accepted got = listener_->accept();
  const time_point now = time_by(clock_);
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
  const time_point now = time_by(clock_);
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

BELAY_DECL const watched_process* rank_record::alive() const noexcept {
  if (over) return nullptr;
  if (member) return &*member;
  return child && !child_gone ? &*child : nullptr;
}

BELAY_DECL bool rank_record::stopped() const noexcept {
  return (member && !over && member->stopped()) || (child && !child_gone && child->stopped());
}

BELAY_DECL bool rank_record::found_stalled(time_point::duration step, time_point::duration limit) {
  if (!stopped()) {
    stopped_for.reset();
    told_stalled = false;
    return false;
  }
  stopped_for = stopped_for ? *stopped_for + step : time_point::duration(0);
  if (told_stalled || *stopped_for < limit) return false;
  return told_stalled = true;
}

BELAY_DECL std::string rank_record::text(int rank) const {
  const std::string name = "rank " + std::to_string(rank);
  if (over) return name + " (gone)";
  if (!joined) return name + (stopped() ? " (has not joined, stopped)" : " (has not joined)");
  return name + (stopped() ? " (stopped)" : " (running)");
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
