// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped sends and receives between pairs. Each ordered pair of ranks has one letter box: the sender puts the
// address of its bytes in, the receiver copies them out. Nothing is buffered, so a transfer is over on both
// sides only when it has met its partner. A rank that gives up takes its letter back first, so that nobody
// reads its memory afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/health.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

class post_office {
 public:
  post_office(health& world, std::span<const int> members, lane which, std::uint32_t group)
      : world_(&world),
        members_(members),
        lane_(which),
        group_(group),
        boxes_(std::make_unique<box[]>(members.size() * members.size())),
        desks_(std::make_unique<desk[]>(members.size())) {
    for (std::size_t r = 0; r < members.size(); ++r) {
      desks_[r].cursors = std::make_unique<cursor[]>(2 * members.size());
      world.enroll(desks_[r].bell);
    }
  }
  ~post_office() {
    for (std::size_t r = 0; r < members_.size(); ++r) world_->withdraw(desks_[r].bell);
  }
  post_office(const post_office&) = delete;
  post_office& operator=(const post_office&) = delete;

  /// Runs rank `me`'s transfers; returns when all have met their partners.
  void run(int me, std::span<const p2p> transfers, where at) {
    desk& mine = desks_[static_cast<std::size_t>(me)];
    std::size_t bytes = 0;
    for (const p2p& transfer : transfers) {
      bytes += transfer.bytes;
      if (transfer.peer >= 0 && transfer.peer < size()) continue;
      throw usage_error("exchange: peer " + std::to_string(transfer.peer) + " is no rank of a group of " +
                            std::to_string(size()),
                        at);
    }
    const call_site call{operation::exchange, mine.operations++, bytes, at};
    if (world_->stopped()) world_->raise(call);
    recorder(me).enter({operation::exchange, false, group_, call.number, bytes, at});
    for (std::size_t c = 0; c < 2 * members_.size(); ++c) mine.cursors[c] = cursor{};
    session now{me, transfers, call};
    bool spun = false;
    deadline limit(world_->timeout());
    // Each look moves what can be moved; a look that moved something is not a wait.
    while (true) {
      const bool met = wait_until(
          mine.bell, spun ? 0 : world_->spins(lane_), [&] { return progress(now); },
          [&] { return world_->stopped() || somebody_left(now) || limit.passed(); });
      if (met && now.finished) break;
      if (!met) give_up(now, limit);
      spun = false;
    }
    recorder(me).leave();
  }

 private:
  // A letter is put in (full), opened by the receiver (reading) and gone (empty), or found not to fit (refused).
  enum class letter : std::uint32_t { empty, full, reading, refused };

  struct alignas(64) box {
    std::atomic<letter> state{letter::empty};
    const void* data = nullptr;
    std::size_t bytes = 0;
    int tag = 0;
    std::uint64_t number = 0;
    where at;
  };
  // One direction with one peer: the transfer that is next, and whether its letter is in the box.
  struct cursor {
    std::size_t next = 0;
    bool posted = false;
  };
  struct alignas(64) desk {
    wait_word<> bell;
    std::unique_ptr<cursor[]> cursors;  // sends, then receives, by peer
    std::uint64_t operations = 0;
  };
  struct session {
    int me;
    std::span<const p2p> transfers;
    call_site call;
    bool finished = false;
  };

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] box& between(int from, int to) const noexcept {
    return boxes_[static_cast<std::size_t>(from) * members_.size() + static_cast<std::size_t>(to)];
  }
  [[nodiscard]] flight_recorder<>& recorder(int me) const noexcept {
    return world_->recorder(members_[static_cast<std::size_t>(me)], lane_);
  }
  [[nodiscard]] cursor& cursor_of(int me, p2p::direction kind, int peer) const noexcept {
    const std::size_t base = kind == p2p::direction::send ? 0 : members_.size();
    return desks_[static_cast<std::size_t>(me)].cursors[base + static_cast<std::size_t>(peer)];
  }
  // The next transfer of a direction with a peer; null when there is none left.
  [[nodiscard]] const p2p* next_of(const session& now, cursor& at, p2p::direction kind, int peer) const noexcept {
    while (at.next < now.transfers.size()) {
      const p2p& candidate = now.transfers[at.next];
      if (candidate.kind == kind && candidate.peer == peer) return &candidate;
      ++at.next;
    }
    return nullptr;
  }

  // True when something moved or nothing is left.
  bool progress(session& now) {
    bool moved = false;
    bool left = false;
    for (int peer = 0; peer < size(); ++peer) {
      cursor& out = cursor_of(now.me, p2p::direction::send, peer);
      while (const p2p* transfer = next_of(now, out, p2p::direction::send, peer)) {
        if (!advance_send(now, out, *transfer)) {
          left = true;
          break;
        }
        moved = true;
      }
      cursor& in = cursor_of(now.me, p2p::direction::receive, peer);
      while (const p2p* transfer = next_of(now, in, p2p::direction::receive, peer)) {
        if (!receive(now, *transfer)) {
          left = true;
          break;
        }
        ++in.next;
        moved = true;
      }
    }
    now.finished = !left;
    return moved || !left;
  }

  // Posts, then sees the letter taken. True when the transfer is over.
  bool advance_send(session& now, cursor& at, const p2p& transfer) {
    box& there = between(now.me, transfer.peer);
    const letter state = there.state.load(std::memory_order_acquire);
    if (state == letter::refused) fail(now);
    if (at.posted) {
      if (state != letter::empty) return false;
      at.posted = false;
      ++at.next;
      return true;
    }
    if (state != letter::empty) return false;
    there.data = transfer.data;
    there.bytes = transfer.bytes;
    there.tag = transfer.tag;
    there.number = now.call.number;
    there.at = now.call.at;
    there.state.store(letter::full, std::memory_order_release);
    at.posted = true;
    if (transfer.peer != now.me) desks_[static_cast<std::size_t>(transfer.peer)].bell.ring();
    return false;
  }

  bool receive(session& now, const p2p& transfer) {
    box& there = between(transfer.peer, now.me);
    letter expected = letter::full;
    if (!there.state.compare_exchange_strong(expected, letter::reading, std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
      return false;
    }
    if (there.bytes != transfer.bytes || there.tag != transfer.tag) {
      refuse(now, transfer, there);
    }
    if (transfer.bytes > 0) std::memmove(transfer.data, there.data, transfer.bytes);
    there.state.store(letter::empty, std::memory_order_release);
    if (transfer.peer != now.me) desks_[static_cast<std::size_t>(transfer.peer)].bell.ring();
    return true;
  }

  [[noreturn]] void refuse(session& now, const p2p& transfer, box& there) {
    const int sender = members_[static_cast<std::size_t>(transfer.peer)];
    const int receiver = members_[static_cast<std::size_t>(now.me)];
    first_cause why;
    why.fault = comm_fault::mismatch;
    why.culprits = {sender, receiver};
    why.there = there.at.text();
    why.message = "rank " + std::to_string(sender) + " sends " + std::to_string(there.bytes) + " bytes with tag " +
                  std::to_string(there.tag) + " at " + there.at.text() + ", rank " + std::to_string(receiver) +
                  " expects " + std::to_string(transfer.bytes) + " bytes with tag " + std::to_string(transfer.tag) +
                  " at " + now.call.at.text();
    world_->stop(std::move(why));
    there.state.store(letter::refused, std::memory_order_release);
    desks_[static_cast<std::size_t>(transfer.peer)].bell.ring();
    take_back(now);
    world_->raise(now.call);
  }

  [[noreturn]] void fail(session& now, double seconds = 0) {
    take_back(now);
    world_->raise(now.call, seconds);
  }

  // After this no peer reads this rank's memory.
  void take_back(session& now) noexcept {
    for (int peer = 0; peer < size(); ++peer) {
      if (!cursor_of(now.me, p2p::direction::send, peer).posted) continue;
      box& there = between(now.me, peer);
      letter expected = letter::full;
      if (there.state.compare_exchange_strong(expected, letter::refused, std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
        continue;
      }
      (void)wait_until(desks_[static_cast<std::size_t>(now.me)].bell, world_->spins(lane_),
                       [&] { return there.state.load(std::memory_order_acquire) != letter::reading; },
                       [] { return false; });
    }
  }

  [[nodiscard]] bool somebody_left(session& now) const noexcept {
    for (int peer = 0; peer < size(); ++peer) {
      if (waits_for(now, peer) && world_->left(members_[static_cast<std::size_t>(peer)], lane_)) return true;
    }
    return false;
  }
  [[nodiscard]] bool waits_for(session& now, int peer) const noexcept {
    return next_of(now, cursor_of(now.me, p2p::direction::send, peer), p2p::direction::send, peer) != nullptr ||
           next_of(now, cursor_of(now.me, p2p::direction::receive, peer), p2p::direction::receive, peer) != nullptr;
  }

  // The wait was interrupted and nothing had moved: who left, or who did not come?
  void give_up(session& now, deadline& limit) {
    if (world_->stopped()) fail(now, limit.seconds());
    first_cause why;
    why.fault = comm_fault::timeout;
    for (int peer = 0; peer < size(); ++peer) {
      const int rank = members_[static_cast<std::size_t>(peer)];
      if (!waits_for(now, peer) || !world_->left(rank, lane_)) continue;
      // What it did before it left may still be in the box.
      if (progress(now)) return;
      why.fault = comm_fault::peer_failed;
      why.culprits.push_back(rank);
    }
    for (int peer = 0; peer < size() && why.fault == comm_fault::timeout; ++peer) {
      if (waits_for(now, peer)) why.culprits.push_back(members_[static_cast<std::size_t>(peer)]);
    }
    for (int rank : why.culprits) {
      why.message += (why.message.empty() ? "" : ", ") + world_->whereabouts(rank, lane_);
    }
    why.there = world_->recorder(why.culprits.front(), lane_).last().at.text();
    why.message += why.fault == comm_fault::timeout
                       ? " did not meet a transfer within " +
                             std::to_string(std::chrono::duration<double>(world_->timeout()).count()) + " s"
                       : " returned without meeting a transfer";
    world_->stop(std::move(why));
    fail(now, limit.seconds());
  }

  health* world_;
  std::span<const int> members_;
  lane lane_;
  std::uint32_t group_;
  std::unique_ptr<box[]> boxes_;
  std::unique_ptr<desk[]> desks_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
