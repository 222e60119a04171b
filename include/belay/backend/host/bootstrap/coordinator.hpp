// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The process that is no rank: it lets the ranks' processes in, keeps the memory they share, sees them end, and
// leads the survivors to one list of who is left. One thread, one poll.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/handshake.hpp"
#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/bootstrap/poll_until.hpp"
#include "belay/backend/host/bootstrap/rank_record.hpp"
#include "belay/backend/host/failure/stall_watch.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/membership/survivor_agreement.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/memory/region_store.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

struct coordinator_options {
  /// A rank that is stopped for longer, from its start to its end, is `stalled`, and killed when others wait for it to
  /// shrink.
  std::chrono::steady_clock::duration stall_limit = std::chrono::seconds(30);
  /// Who knocks and says nothing for longer is shown out.
  std::chrono::steady_clock::duration hello_limit = std::chrono::seconds(10);
};

/// Serves a world. Ranks in every call are those of the start, also after a shrink. `World` has
///   void joined(int rank, pid_t);                   before the rank gets its answer
///   void ended(int rank, ending);                   its process is gone; all it said was told before
///   void said(int rank, parting);
/// and may have
///   segment& renew(const std::vector<int>& survivors);  a fresh control segment; called again if another dies
///   void stalled(int rank);                         once for each stop
///   void child_ended(int rank, ending);             a process told by `expect`, also where another joined for it
///   void enlist(std::vector<pollfd>&);              descriptors to be polled with ours
///   void served(std::span<const pollfd>);           and what came of them, after each poll
/// What they throw comes out of `step` and `run`.
template <class World>
class coordinator {
 public:
  using clock = std::chrono::steady_clock;

  /// All four outlive the holder; the door is closed when all have joined.
  coordinator(bootstrap_socket& door, int ranks, memory_segment& control_block, World& world,
              coordinator_options options = {}, where at = where::current())
      : door_(&door),
        control_(&control_block),
        world_(&world),
        options_(options),
        at_(at),
        reception_(door, options.hello_limit, at),
        stalls_(options.stall_limit) {
    if (ranks < 1) throw usage_error("a holder for " + std::to_string(ranks) + " ranks", at);
    seats_.resize(static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) members_.push_back(rank);
  }
  coordinator(const coordinator&) = delete;
  coordinator& operator=(const coordinator&) = delete;

  /// `child`, a child of this process, is to be `rank`: its end is seen also if it never joins, and how it ended is
  /// known. The holder reaps it.
  void expect(int rank, pid_t child) {
    rank_record& here = at_rank(rank);
    here.child = watched_process::watch(child, at_);
    if (!here.child) throw usage_error("process " + std::to_string(child) + " is no child of this one", at_);
  }

  /// Serves until every rank is over: joined, or expected, and its process gone.
  void run() {
    while (!all_over()) step(time_point::max());
  }
  /// Serves until all have joined: true; or all that have not are gone, or the time is: false.
  [[nodiscard]] bool serve_until_joined(time_point until) {
    const auto decided = [](const rank_record& one) { return one.joined || one.over; };
    while (!std::all_of(seats_.begin(), seats_.end(), decided) && clock::now() < until) step(until);
    return all_joined();
  }

  /// Waits until something happens, or `until`, and serves it.
  void step(time_point until) {
    gather();
    if (poll_until(entries_.data(), entries_.size(), next_moment(until)) <= 0) {
      for (pollfd& entry : entries_) entry.revents = 0;
    }
    if constexpr (has_more) {
      world_->served(std::span<const pollfd>(entries_.data() + tags_.size(), entries_.size() - tags_.size()));
    }
    for (std::size_t i = 0; i < tags_.size(); ++i) {
      if (entries_[i].revents != 0) serve(tags_[i]);
    }
    const time_point now = clock::now();
    reception_.show_out();
    stalls_.look(seats_, now, [this](int rank) {
      if constexpr (requires { world_->stalled(rank); }) world_->stalled(rank);
    });
    refuse_late(now);
    if constexpr (can_renew) agree(arbiter{this}, survivors_);
  }

  [[nodiscard]] bool all_joined() const noexcept {
    return std::all_of(seats_.begin(), seats_.end(), [](const rank_record& one) { return one.joined; });
  }
  [[nodiscard]] bool all_over() const noexcept {
    return std::all_of(seats_.begin(), seats_.end(), [](const rank_record& one) { return one.finished(); });
  }
  /// False where the rank's process is gone or not known.
  bool send_signal(int rank, int number) const noexcept {
    const watched_process* const living = seats_[static_cast<std::size_t>(rank)].alive();
    return living != nullptr && living->send_signal(number);
  }
  [[nodiscard]] const rank_record& about(int rank) const { return seats_.at(static_cast<std::size_t>(rank)); }
  [[nodiscard]] std::size_t regions() const noexcept { return regions_.size(); }
  /// Ranks of the present epoch.
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }

 private:
  enum class source : std::uint8_t { listener, visitor, line, child, member };
  struct tag {
    source what;
    std::size_t index;
  };
  static constexpr bool has_more = requires(World & world, std::vector<pollfd>& entries, std::span<const pollfd> seen) {
    world.enlist(entries);
    world.served(seen);
  };
  static constexpr bool can_renew = requires(World & world, const std::vector<int>& ranks) { world.renew(ranks); };

  [[nodiscard]] rank_record& at_rank(int rank) { return seats_.at(static_cast<std::size_t>(rank)); }

  void gather() {
    entries_.clear();
    tags_.clear();
    const auto add = [this](int file, source what, std::size_t index) {
      entries_.push_back({file, POLLIN, 0});
      tags_.push_back({what, index});
    };
    if (const int file = reception_.listener(); file >= 0) add(file, source::listener, 0);
    for (std::size_t i = 0; i < reception_.waiting(); ++i) add(reception_.fd(i), source::visitor, i);
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      const rank_record& one = seats_[i];
      if (one.line) add(one.line.fd(), source::line, i);
      if (one.child && !one.child_gone) add(one.child->fd(), source::child, i);
      if (one.member && !one.over) add(one.member->fd(), source::member, i);
    }
    if constexpr (has_more) world_->enlist(entries_);
  }

  [[nodiscard]] time_point next_moment(time_point until) const noexcept {
    until = reception_.next(std::min(until, stalls_.next()));
    for (const rank_record& one : seats_) {
      if (one.shrink) until = std::min(until, one.shrink->until);
    }
    return until;
  }

  void serve(tag from) {
    const int rank = static_cast<int>(from.index);
    switch (from.what) {
      case source::listener: reception_.open(seats_.size()); return;
      case source::visitor:
        if (auto who = reception_.hear(from.index, seats_)) admit(std::move(*who));
        return;
      case source::line: listen_to(rank, 64); return;
      case source::child: bury_child(rank); return;
      case source::member: bury_member(rank); return;
    }
  }

  // --- who comes in

  void admit(handshake::newcomer who) {
    const int rank = who.rank;
    rank_record& here = at_rank(rank);
    here.joined = true;
    here.line = std::move(who.line);
    here.line.limit_body(connection::longest_body);
    const pid_t pid = who.who.pid();
    if (!here.child || here.child->pid() != pid) here.member = std::move(who.who);
    world_->joined(rank, pid);
    message welcome;
    welcome.kind = message_kind::welcome;
    welcome.rank = rank;
    welcome.numbers = {epoch_, control_->size_bytes(), 0};
    reply(here, welcome, control_->fd());
    if (all_joined()) door_->close();
  }

  // --- what they ask

  // We never wait for a guest: one that does not take an answer gets none any more. What it says is still heard: it
  // may be dead, and its last words in our queue.
  void reply(rank_record& to, const message& what, int file = -1) {
    if (!to.line || to.line.send(what, at_once, file)) return;
    to.deaf = true;
    to.line.stop_sending();
  }
  void listen_to(int rank, std::size_t most) {
    rank_record& here = at_rank(rank);
    for (std::size_t i = 0; i < most && here.line; ++i) {
      received got = here.line.receive(at_once);
      if (got.what == receipt::nothing) return;
      if (got.what != receipt::whole) return here.line.close();
      handle(rank, here, std::move(got));
    }
  }

  void handle(int rank, rank_record& here, received got) {
    const std::uint64_t number = got.said.numbers[0];
    switch (got.said.kind) {
      case message_kind::keep:
      case message_kind::attach:
      case message_kind::drop: {
        const auto [says, file] = regions_.answer(rank, std::move(got));
        return reply(here, says, file);
      }
      case message_kind::goodbye: {
        if (here.said_goodbye || number > 1) return here.line.close();
        here.said_goodbye = true;
        here.shrink.reset();
        world_->said(rank,
                     exit_message{static_cast<exit_message::outcome>(number), got.said.numbers[1], got.said.body});
        message farewell;
        farewell.kind = message_kind::farewell;
        farewell.ticket = got.said.ticket;
        return reply(here, farewell);
      }
      case message_kind::shrink: {
        const char* const wrong = !can_renew                         ? "this world does not shrink"
                                  : here.said_goodbye || here.shrink ? "one wish at a time, and none after goodbye"
                                                                     : nullptr;
        if (wrong != nullptr) return reply(here, refused(got.said.ticket, refusal::words, wrong));
        const std::uint64_t longest = 365ULL * 24 * 3600 * 1'000'000;
        const auto spin_policy = std::chrono::microseconds(static_cast<std::int64_t>(std::min(number, longest)));
        here.shrink = rank_record::wish{got.said.ticket, clock::now() + spin_policy};
        return;
      }
      default: return here.line.close();
    }
  }

  // --- how they end

  void bury_child(int rank) {
    rank_record& here = at_rank(rank);
    if (here.child_gone) return;
    const bool is_rank = !here.member;
    if (is_rank) listen_to(rank, last_words);
    here.child_gone = true;
    const exit_status how = here.child->reap();
    if (is_rank) leave(rank, here);
    if constexpr (requires { world_->child_ended(rank, how); }) world_->child_ended(rank, how);
    if (is_rank) world_->ended(rank, how);
  }
  void bury_member(int rank) {
    rank_record& here = at_rank(rank);
    if (here.over) return;
    listen_to(rank, last_words);
    const exit_status how = here.member->reap();
    leave(rank, here);
    world_->ended(rank, how);
  }
  void leave(int rank, rank_record& here) {
    here.over = true;
    here.line.close();
    here.shrink.reset();
    regions_.forget(rank);
  }

  // --- how the rest goes on

  void refuse_late(time_point now) {
    for (rank_record& here : seats_) {
      if (!here.shrink || now < here.shrink->until) continue;
      std::string missing;
      for (int rank : members_) {
        const rank_record& other = at_rank(rank);
        if (!other.left() && !other.shrink) missing.append(missing.empty() ? "" : ", ").append(other.text(rank));
      }
      reply(here, refused(here.shrink->ticket, refusal::late, missing));
      here.shrink.reset();
    }
  }

  // What `agree` asks of us. Who is stalled meanwhile is killed, and seen dead before.
  struct arbiter {
    coordinator* self;

    [[nodiscard]] const std::vector<int>& members() const noexcept { return self->members_; }
    [[nodiscard]] bool asks(int rank) const { return self->at_rank(rank).shrink.has_value(); }
    [[nodiscard]] bool has_left(int rank) const { return self->at_rank(rank).left(); }
    void hurry() const { self->kill_stalled(); }
    [[nodiscard]] bool find_dead(const std::vector<int>& ranks) const { return self->find_dead(ranks); }
    [[nodiscard]] bool renew(const std::vector<int>& survivors) const { return self->renew(survivors); }
    void tell(const std::vector<int>& survivors) const { self->tell(survivors); }
  };

  [[nodiscard]] bool renew(const std::vector<int>& survivors) {
    try {
      fresh_ = &world_->renew(survivors);
      return true;
    } catch (const budget_error& little) {
      for (int rank : survivors) {
        rank_record& here = at_rank(rank);
        reply(here, refused(here.shrink->ticket, refusal::budget, little.what(), little.requested_bytes(),
                            little.available_bytes()));
        here.shrink.reset();
      }
      return false;
    }
  }

  // Whether one of them died meanwhile; he is buried.
  [[nodiscard]] bool find_dead(const std::vector<int>& ranks) {
    bool found = false;
    for (int rank : ranks) {
      const watched_process* const living = at_rank(rank).alive();
      if (living == nullptr || !living->gone()) continue;
      found = true;
      at_rank(rank).member ? bury_member(rank) : bury_child(rank);
    }
    return found;
  }

  void tell(const std::vector<int>& survivors) {
    control_ = fresh_;
    members_ = survivors;
    ++epoch_;
    message news;
    news.kind = message_kind::renewed;
    news.numbers = {epoch_, fresh_->size_bytes(), 0};
    news.body.resize(survivors.size() * sizeof(std::int32_t));
    for (std::size_t i = 0; i < survivors.size(); ++i) {
      const std::int32_t rank = survivors[i];
      std::memcpy(news.body.data() + i * sizeof rank, &rank, sizeof rank);
    }
    for (std::size_t i = 0; i < survivors.size(); ++i) {
      rank_record& here = at_rank(survivors[i]);
      news.rank = static_cast<std::int32_t>(i);
      news.ticket = here.shrink->ticket;
      here.shrink.reset();
      reply(here, news, fresh_->fd());
    }
  }

  void kill_stalled() {
    for (int rank : members_) {
      rank_record& here = at_rank(rank);
      if (here.left() || here.shrink || !here.told_stalled) continue;
      const watched_process* const living = here.alive();
      // Told some time ago: it may run again.
      if (living == nullptr || !living->stopped()) continue;
      if (!living->send_signal(SIGKILL) && !living->gone()) here.beyond_reach = true;
    }
  }

  static constexpr std::size_t last_words = 1 << 20;  // messages of a dead process that are still read

  bootstrap_socket* door_;
  memory_segment* control_;
  World* world_;
  coordinator_options options_;
  where at_;
  handshake reception_;
  stall_watch stalls_;
  std::vector<rank_record> seats_;
  std::vector<int> members_;
  std::vector<int> survivors_;       // while they agree
  memory_segment* fresh_ = nullptr;  // what they go on with
  std::uint64_t epoch_ = 0;
  region_store regions_;
  std::vector<pollfd> entries_;  // ours, in the order of tags_, then the world's
  std::vector<tag> tags_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
