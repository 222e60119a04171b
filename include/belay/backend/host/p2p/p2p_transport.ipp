// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped sends and receives.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "belay/backend/host/failure/wait_diagnosis.hpp"
#include "belay/backend/host/p2p/p2p_transport.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/backend/host/tuning/variant_choice.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL p2p_transport::p2p_transport(world_status& world, const address_map& memory, std::span<const int> members,
                                        lane which, std::uint32_t group, int me, group_layout shared)
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
BELAY_DECL p2p_transport::~p2p_transport() {
  if (tuner_) print_settled(*tuner_, size());
}

BELAY_DECL void p2p_transport::run(std::span<const p2p> transfers, world_status::clock::duration timeout, where at) {
  const std::size_t bytes = total_bytes(transfers);
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
        doorbell_of(me_), world_->before_sleep(lane_), [&](std::memory_order) { return progress(now); },
        [&] { return world_->aborted() || missing.hopeless([&](int peer) { return waits_for(now, peer); }, none); });
    if (met && now.finished) break;
    if (!met) give_up(now, missing, limit);
  }
  recorder().finish(limit.waited_us(*world_));
}

BELAY_DECL const p2p* p2p_transport::next_of(const session& now, cursor& at, p2p::direction kind, int peer) noexcept {
  while (at.next < now.transfers.size()) {
    const p2p& candidate = now.transfers[at.next];
    if (candidate.kind == kind && candidate.peer == peer) return &candidate;
    ++at.next;
  }
  return nullptr;
}
BELAY_DECL bool p2p_transport::waits_for(const session& now, int peer) noexcept {
  return next_of(now, cursor_of(p2p::direction::send, peer), p2p::direction::send, peer) != nullptr ||
         next_of(now, cursor_of(p2p::direction::receive, peer), p2p::direction::receive, peer) != nullptr;
}

BELAY_DECL bool p2p_transport::progress(session& now) {
  bool moved = false;
  bool left = false;
  const auto advance = [&](p2p::direction kind, int peer) {
    cursor& at = cursor_of(kind, peer);
    while (const p2p* transfer = next_of(now, at, kind, peer)) {
      const bool over = kind == p2p::direction::send ? send(now, at, *transfer) : receive(now, at, *transfer);
      if (!over) {
        left = true;
        return;
      }
      moved = true;
    }
  };
  for (int peer = 0; peer < size(); ++peer) {
    advance(p2p::direction::send, peer);
    advance(p2p::direction::receive, peer);
  }
  now.finished = !left;
  return moved || !left;
}

BELAY_DECL bool p2p_transport::send(session& now, cursor& at, const p2p& transfer) {
  mailbox& there = mailbox_of(me_, transfer.peer);
  const mailbox_state state = there.flag.state();
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

BELAY_DECL void p2p_transport::post(mailbox& there, cursor& at, const p2p& transfer) {
  at.step = at.end.next(transfer.bytes, shared_.piece_bytes(), [&] {
    const memory_reference from = memory_->refer(transfer.data, transfer.bytes, peers_);
    there.reference = from.bits();
    there.tag = transfer.tag;
    there.site = recorder().last_site();
    return path_of(transfer, from);
  });
  there.step = at.step;
  if (at.step.path == transfer_path::pieces && at.step.bytes > 0) {
    std::memcpy(shared_.piece(lane_, me_, transfer.peer), static_cast<const std::byte*>(transfer.data) + at.step.offset,
                at.step.bytes);
  }
  there.flag.post();
  at.posted = true;
  if (transfer.peer != me_) doorbell_of(transfer.peer).notify_sleepers();
}
BELAY_DECL transfer_path p2p_transport::path_of(const p2p& transfer, memory_reference from) const noexcept {
  if (memory_->direct(from) || transfer.peer == me_) return transfer_path::mapped;
  const bool copied = transfer.bytes > shared_.piece_bytes() && world_->reads_others(world_rank(transfer.peer));
  return copied ? transfer_path::cma : transfer_path::pieces;
}

BELAY_DECL bool p2p_transport::receive(session& now, cursor& at, const p2p& transfer) {
  mailbox& there = mailbox_of(transfer.peer, me_);
  if (!there.flag.begin_read()) return false;
  const transfer_step step = there.step;
  if (there.tag != transfer.tag || !at.end.continues(step, transfer.bytes, shared_.piece_bytes())) {
    refuse(now, transfer, there, at.end.moved());
  }
  if (step.bytes > 0) read(now, transfer, there, step);
  if (at.end.advance(step)) ++at.next;
  if (!there.flag.end_read()) fail(now);
  if (transfer.peer != me_) doorbell_of(transfer.peer).notify_sleepers();
  return true;
}

BELAY_DECL void p2p_transport::read(session& now, const p2p& transfer, mailbox& there, const transfer_step& step) {
  std::byte* const to = static_cast<std::byte*>(transfer.data) + step.offset;
  const memory_reference from = memory_reference::of(there.reference);
  switch (step.path) {
    case transfer_path::pieces: std::memcpy(to, shared_.piece(lane_, transfer.peer, me_), step.bytes); return;
    case transfer_path::mapped:
      if (transfer.peer == me_) {  // (it may overlap)
        std::memmove(to, memory_->own(from), step.bytes);
      } else if (const std::byte* const mapped = memory_->resolve(from)) {
        copy_mapped(to, mapped, step.bytes);
      } else {
        cannot_read(now, there, transfer, EPERM);  // no process has died
      }
      return;
    case transfer_path::cma:
      if (!read_process(world_->pid_of(world_rank(transfer.peer)), from, 0, to, step.bytes))
        cannot_read(now, there, transfer, errno);
      return;
  }
}
BELAY_DECL void p2p_transport::copy_mapped(void* to, const std::byte* from, std::size_t bytes) {
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

BELAY_DECL void p2p_transport::refuse(session& now, const p2p& transfer, mailbox& there, std::uint64_t moved) {
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
    why.message += ", of which " + std::to_string(moved) + " have come: a message of " + std::to_string(step.bytes) +
                   " bytes behind " + std::to_string(step.offset) + " does not continue them";
  }
  abort_and_refuse(now, there, transfer.peer, why);
}
BELAY_DECL void p2p_transport::cannot_read(session& now, mailbox& there, const p2p& transfer, int error) {
  const int sender = world_rank(transfer.peer);
  abort_cause why = world_->unreadable(world_rank(me_), sender, lane_, transfer.bytes, error);
  why.there = world_->site_of(sender, lane_);
  abort_and_refuse(now, there, transfer.peer, why);
}
BELAY_DECL void p2p_transport::abort_and_refuse(session& now, mailbox& there, int peer, const abort_cause& why) {
  world_->abort(why);
  there.flag.refuse();
  doorbell_of(peer).notify_all();
  fail(now);
}

BELAY_DECL void p2p_transport::give_up(session& now, wait_diagnosis& missing, deadline& limit) {
  if (!world_->aborted()) {
    if (progress(now)) return;  // what a rank posted before it left may still be in the mailbox
    world_->abort(missing.cause(now.call, [&](int peer) { return waits_for(now, peer); }, none));
  }
  fail(now, limit.seconds(*world_));
}
BELAY_DECL void p2p_transport::fail(session& now, double seconds) {
  take_back();
  world_->raise(now.call, seconds);
}
BELAY_DECL void p2p_transport::take_back() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (cursor_of(p2p::direction::send, peer).posted) mailbox_of(me_, peer).flag.take_back(world_->space());
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
