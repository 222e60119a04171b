// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped sends and receives between pairs. Each ordered pair of ranks has one letter box: the sender puts in where
// its bytes are, the receiver copies them out; only what the receiver cannot see, or what is small, is put into the
// box itself, in pieces. A transfer is over on both sides only when it has met its partner. A rank that gives up takes
// its letter back first, so that nobody reads its memory afterwards.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/wait_diagnosis.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/p2p/mailbox_state.hpp"
#include "belay/backend/host/p2p/transfer.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/backend/host/tuning/explain.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/backend/host/tuning/variant_choice.hpp"
#include "belay/backend/host/tuning/variant.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One lane of one group, as one of its ranks sees it.
class p2p_transport {
 public:
  p2p_transport(world_status& world, const address_map& memory, std::span<const int> members, lane which,
                std::uint32_t group, int me, group_layout shared)
      : world_(&world),
        memory_(&memory),
        members_(members),
        lane_(which),
        group_(group),
        me_(me),
        peers_(rank_set::of(members, group)),
        shared_(shared),
        cursors_(2 * members.size()) {
    const bool free = world.shared().shape().algorithm == static_cast<std::uint32_t>(algorithm::automatic);
    if (free && members.size() > 1) tuner_.emplace();
  }

  p2p_transport(const p2p_transport&) = delete;
  p2p_transport& operator=(const p2p_transport&) = delete;
  ~p2p_transport() {
    if (tuner_) print_settled(*tuner_, size());
  }

  /// Runs this rank's transfers; returns when all have met their partners.
  void run(std::span<const p2p> transfers, world_status::clock::duration timeout, where at) {
    const std::size_t bytes = check_transfers(transfers, size(), at);
    const call_site call{operation::exchange, group_, number_, bytes, at};
    if (world_->aborted()) world_->raise(call);
    ++number_;
    recorder().enter(operation::exchange, group_, call.number, bytes, at.file, at.line);
    std::fill(cursors_.begin(), cursors_.end(), cursor{});
    session now{transfers, call};
    deadline limit(timeout, recorder());
    wait_diagnosis missing(*world_, members_, lane_, limit);
    // Each look moves what can be moved; a look that moved something is not a wait.
    while (true) {
      const bool met = wait_until(
          desk(me_).ring, world_->before_sleep(lane_), [&](std::memory_order) { return progress(now); },
          [&] { return world_->aborted() || missing.hopeless([&](int peer) { return waits_for(now, peer); }, none); });
      if (met && now.finished) break;
      if (!met) give_up(now, missing, limit);
    }
    recorder().leave(limit.waited_us());
  }

 private:
  // One direction with one peer: the transfer that is next, how far it is, and the sender's letter in the box.
  struct cursor {
    std::size_t next = 0;
    transfer_end end;
    transfer_step step;
    bool posted = false;
  };
  struct session {
    std::span<const p2p> transfers;
    call_site call;
    bool finished = false;
  };
  static constexpr int none = -1;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int world_rank(int who) const noexcept { return members_[static_cast<std::size_t>(who)]; }
  [[nodiscard]] mailbox& box(int from, int to) const noexcept { return shared_.box(lane_, from, to); }
  [[nodiscard]] p2p_doorbell& desk(int who) const noexcept { return shared_.desks(lane_)[who]; }
  [[nodiscard]] flight_recorder<>& recorder() const noexcept { return world_->recorder(world_rank(me_), lane_); }
  [[nodiscard]] cursor& cursor_of(p2p::direction kind, int peer) noexcept {
    const std::size_t base = kind == p2p::direction::send ? 0 : members_.size();
    return cursors_[base + static_cast<std::size_t>(peer)];
  }
  // The next transfer of a direction with a peer; null when there is none left.
  [[nodiscard]] static const p2p* next_of(const session& now, cursor& at, p2p::direction kind, int peer) noexcept {
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
      cursor& out = cursor_of(p2p::direction::send, peer);
      while (const p2p* transfer = next_of(now, out, p2p::direction::send, peer)) {
        if (!advance_send(now, out, *transfer)) {
          left = true;
          break;
        }
        moved = true;
      }
      cursor& in = cursor_of(p2p::direction::receive, peer);
      while (const p2p* transfer = next_of(now, in, p2p::direction::receive, peer)) {
        if (!receive(now, in, *transfer)) {
          left = true;
          break;
        }
        moved = true;
      }
    }
    now.finished = !left;
    return moved || !left;
  }

  // True when a letter was taken: the transfer, or a piece of it, is over.
  bool advance_send(session& now, cursor& at, const p2p& transfer) {
    mailbox& there = box(me_, transfer.peer);
    const mailbox_state state = there.state.look();
    if (state == mailbox_state::refused) fail(now);
    if (state != mailbox_state::empty) return false;
    if (at.posted) {
      at.posted = false;
      if (at.end.advance(at.step)) ++at.next;
      return true;
    }
    post(there, at, transfer);
    return false;
  }

  void post(mailbox& there, cursor& at, const p2p& transfer) {
    at.step = at.end.next(transfer.bytes, shared_.piece_room(), [&] {
      const memory_reference where_it_is = memory_->refer(transfer.data, transfer.bytes, peers_);
      there.reference = where_it_is.bits();
      there.tag = transfer.tag;
      there.site = recorder().last_site();
      return path_of(transfer, where_it_is);
    });
    there.step = at.step;
    if (at.step.path == transfer_path::pieces && at.step.here > 0) {
      std::memcpy(shared_.piece(lane_, me_, transfer.peer),
                  static_cast<const std::byte*>(transfer.data) + at.step.before, at.step.here);
    }
    there.state.put();
    at.posted = true;
    if (transfer.peer != me_) desk(transfer.peer).ring.notify_sleepers();
  }
  [[nodiscard]] transfer_path path_of(const p2p& transfer, memory_reference from) const noexcept {
    if (memory_->direct(from) || transfer.peer == me_) return transfer_path::mapped;
    const bool copied = transfer.bytes > shared_.piece_room() && world_->reads_others(world_rank(transfer.peer));
    return copied ? transfer_path::cma : transfer_path::pieces;
  }

  bool receive(session& now, cursor& at, const p2p& transfer) {
    mailbox& there = box(transfer.peer, me_);
    if (!there.state.open()) return false;
    const transfer_step step = there.step;
    if (there.tag != transfer.tag || !at.end.continues(step, transfer.bytes, shared_.piece_room())) {
      refuse(now, transfer, there, at.end.moved());
    }
    if (step.here > 0) take(now, transfer, there, step);
    if (at.end.advance(step)) ++at.next;
    if (!there.state.empty()) fail(now);
    if (transfer.peer != me_) desk(transfer.peer).ring.notify_sleepers();
    return true;
  }

  // The bytes of a letter, by the path that the sender has chosen.
  void take(session& now, const p2p& transfer, mailbox& there, const transfer_step& step) {
    std::byte* const to = static_cast<std::byte*>(transfer.data) + step.before;
    const memory_reference from = memory_reference::of(there.reference);
    const int sender = world_rank(transfer.peer);
    switch (step.path) {
      case transfer_path::pieces: std::memcpy(to, shared_.piece(lane_, transfer.peer, me_), step.here); return;
      case transfer_path::mapped:
        if (transfer.peer == me_) {  // (it may overlap)
          std::memmove(to, memory_->own(from), step.here);
        } else if (const std::byte* const seen = memory_->resolve(from)) {
          copy_mapped(to, seen, step.here);
        } else {
          cannot_read(now, there, sender, transfer, EPERM);  // nobody has died
        }
        return;
      case transfer_path::cma:
        if (!read_process(world_->pid_of(sender), from, 0, to, step.here))
          cannot_read(now, there, sender, transfer, errno);
        return;
    }
  }
  [[noreturn]] void cannot_read(session& now, mailbox& there, int sender, const p2p& transfer, int error) {
    abort_cause why = world_->unreadable(world_rank(me_), sender, lane_, transfer.bytes, error);
    why.there = world_->site_of(sender, lane_);
    world_->abort(why);
    there.state.refuse();
    desk(transfer.peer).ring.notify_all();
    fail(now);
  }

  // Bytes that this rank has mapped. No other rank copies them: this one tunes alone.
  void copy_mapped(void* to, const std::byte* from, std::size_t bytes) {
    if (bytes < least_tried_mapped || !tuner_) return world_->copies().copy(to, from, bytes);
    const auto variants = variants_of({operation::exchange, size(), false, true});
    const std::uint64_t head = call_descriptor::head_of({operation::exchange, reduction::none, {}, -1, 0, 0});
    const std::uint64_t kind = tuning_kind(head | call_descriptor::loads_and_stores, bytes);
    const memory_access by = variants[tuner_->next(kind, bytes, variants.size())].by;
    const world_status::clock::time_point began = world_status::clock::now();
    world_->copies().copy_by(by, to, from, bytes);
    if (tuner_->timing())
      tuner_->done(std::chrono::duration<double, std::micro>(world_status::clock::now() - began).count());
  }

  [[noreturn]] void refuse(session& now, const p2p& transfer, mailbox& there, std::uint64_t moved) {
    const int sender = world_rank(transfer.peer);
    const int receiver = world_rank(me_);
    abort_cause why;
    why.fault = comm_fault::mismatch;
    why.culprits = {sender, receiver};
    why.there = world_->recorder(sender, lane_).site_text(there.site);
    const transfer_step step = there.step;
    why.message = "rank " + std::to_string(sender) + " sends " + std::to_string(step.total) + " bytes with tag " +
                  std::to_string(there.tag) + " at " + why.there + ", rank " + std::to_string(receiver) + " expects " +
                  std::to_string(transfer.bytes) + " bytes with tag " + std::to_string(transfer.tag) + " at " +
                  now.call.at.text();
    if (step.total == transfer.bytes && there.tag == transfer.tag) {
      why.message += ", of which " + std::to_string(moved) + " have come: a letter of " + std::to_string(step.here) +
                     " bytes behind " + std::to_string(step.before) + " does not continue them";
    }
    world_->abort(why);
    there.state.refuse();
    desk(transfer.peer).ring.notify_all();
    fail(now);
  }

  [[noreturn]] void fail(session& now, double seconds = 0) {
    take_back();
    world_->raise(now.call, seconds);
  }

  // After this no peer reads this rank's memory, or it learns that it was in vain.
  void take_back() noexcept {
    for (int peer = 0; peer < size(); ++peer) {
      if (cursor_of(p2p::direction::send, peer).posted) box(me_, peer).state.take_back(world_->space());
    }
  }

  [[nodiscard]] bool waits_for(const session& now, int peer) noexcept {
    return next_of(now, cursor_of(p2p::direction::send, peer), p2p::direction::send, peer) != nullptr ||
           next_of(now, cursor_of(p2p::direction::receive, peer), p2p::direction::receive, peer) != nullptr;
  }

  // The wait was interrupted and nothing had moved: who left, or who did not come?
  void give_up(session& now, wait_diagnosis& missing, deadline& limit) {
    if (!world_->aborted()) {
      if (progress(now)) return;  // what a rank did before it left may still be in the box
      world_->abort(missing.cause(
          now.call, [&](int peer) { return waits_for(now, peer); }, none));
    }
    fail(now, limit.seconds());
  }

  world_status* world_;
  const address_map* memory_;
  std::span<const int> members_;
  lane lane_;
  std::uint32_t group_;
  int me_;
  rank_set peers_;
  group_layout shared_;
  std::optional<online_tuner> tuner_;  // of what is received
  std::vector<cursor> cursors_;        // sends, then receives, by peer
  std::uint64_t number_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
