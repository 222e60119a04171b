// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped sends and receives between pairs. The sender requests to send, the receiver compares the request with what it
// expects and clears it, and only then bytes move; so a transfer is over on both sides only when it has met its
// partner, and a pair that disagrees has written nothing.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/progress/chunked_transfer.hpp"
#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// One exchange of one rank.
class exchange_run {
 public:
  exchange_run(group_state& group, lane which, std::span<const p2p> transfers, clock::duration limit, where at)
      : group_(&group),
        progress_(group.progress.get()),
        lane_(which),
        limit_(limit),
        directions_(static_cast<std::size_t>(group.size()) * 2) {
    const std::size_t bytes = total_bytes(transfers);
    for (const p2p& transfer : transfers) direction_of(transfer.kind, transfer.peer).push_back(transfer);
    call_ = {operation::exchange, group.id, group.exchanges[index(which)]++, bytes, at};
  }

  /// Returns when all transfers have met their partners.
  void run() {
    if (progress_->aborted()) progress_->raise(call_);
    progress_->enter(lane_, call_);
    copy_own();
    progress_->await(
        lane_, call_, limit_, [&] { return progress(); },
        [&](auto tell) {
          for (int peer = 0; peer < group_->size(); ++peer) {
            const bool waits = waits_for(p2p::direction::send, peer) || waits_for(p2p::direction::receive, peer);
            if (waits) tell(group_->world_rank(peer), !moving(peer));
          }
        });
    progress_->finish(lane_);
  }

 private:
  enum class step : std::uint8_t { idle, rts_sent, moving };

  // The transfers of one direction with one peer, one after the other.
  struct direction {
    std::vector<p2p> transfers;
    std::size_t next = 0;
    step now = step::idle;
    std::unique_ptr<chunked_transfer> bytes;

    void push_back(const p2p& transfer) { transfers.push_back(transfer); }
    [[nodiscard]] bool over() const noexcept { return next == transfers.size(); }
  };

  [[nodiscard]] direction& direction_of(p2p::direction kind, int peer) noexcept {
    return directions_[static_cast<std::size_t>(peer) * 2 + (kind == p2p::direction::send ? 0 : 1)];
  }
  [[nodiscard]] bool waits_for(p2p::direction kind, int peer) noexcept { return !direction_of(kind, peer).over(); }
  // Whether only bytes in transit are missing: then the peer has done its part.
  [[nodiscard]] bool moving(int peer) noexcept {
    const direction& out = direction_of(p2p::direction::send, peer);
    const direction& in = direction_of(p2p::direction::receive, peer);
    return (out.over() || out.now == step::moving) && (in.over() || in.now == step::moving);
  }

  bool progress() {
    bool over = true;
    for (int peer = 0; peer < group_->size(); ++peer) {
      if (peer == group_->rank) continue;
      direction& out = direction_of(p2p::direction::send, peer);
      while (!out.over() && send(out, peer)) {
      }
      direction& in = direction_of(p2p::direction::receive, peer);
      while (!in.over() && receive(in, peer)) {
      }
      over = over && out.over() && in.over();
    }
    return over;
  }

  // True when the direction's next transfer is over.
  bool send(direction& out, int peer) {
    const p2p& transfer = out.transfers[out.next];
    control_channel& channel = progress_->channel(lane_);
    const int to = group_->world_rank(peer);
    if (out.now == step::idle) {
      control_message rts;
      rts.kind = control_message_kind::rts;
      rts.group = group_->key;
      rts.number = call_.number;
      rts.print.what = operation::exchange;
      rts.bytes = transfer.bytes;
      rts.tag = transfer.tag;
      rts.text = call_.at.text();
      channel.post(to, rts);
      out.now = step::rts_sent;
    }
    if (out.now == step::rts_sent) {
      if (channel.first(group_->key, control_message_kind::cts, to) == nullptr) return false;
      static_cast<void>(channel.take(group_->key, control_message_kind::cts, to));
      begin(out, {to, static_cast<const std::byte*>(transfer.data), transfer.bytes, nullptr, 0});
    }
    return finish(out);
  }

  bool receive(direction& in, int peer) {
    const p2p& transfer = in.transfers[in.next];
    control_channel& channel = progress_->channel(lane_);
    const int from = group_->world_rank(peer);
    if (in.now != step::moving) {
      if (channel.first(group_->key, control_message_kind::rts, from) == nullptr) return false;
      const control_message rts = channel.take(group_->key, control_message_kind::rts, from);
      if (rts.bytes != transfer.bytes || rts.tag != transfer.tag) refuse(from, rts, transfer);
      control_message cts;
      cts.kind = control_message_kind::cts;
      cts.group = group_->key;
      cts.number = call_.number;
      channel.post(from, cts);
      begin(in, {from, nullptr, 0, static_cast<std::byte*>(transfer.data), transfer.bytes});
    }
    return finish(in);
  }

  void begin(direction& which, const transfer& what) {
    which.bytes = std::make_unique<chunked_transfer>(progress_->channel(lane_).comm());
    which.bytes->add(what);
    which.now = step::moving;
  }
  static bool finish(direction& which) {
    if (!which.bytes->progress()) return false;
    which.bytes.reset();
    which.now = step::idle;
    ++which.next;
    return true;
  }

  // What this rank sends to itself.
  void copy_own() {
    direction& out = direction_of(p2p::direction::send, group_->rank);
    direction& in = direction_of(p2p::direction::receive, group_->rank);
    while (!out.over() && !in.over()) {
      const p2p& from = out.transfers[out.next++];
      const p2p& to = in.transfers[in.next++];
      control_message rts;
      rts.bytes = from.bytes;
      rts.tag = from.tag;
      rts.text = call_.at.text();
      if (from.bytes != to.bytes || from.tag != to.tag) refuse(progress_->number(), rts, to);
      if (to.bytes > 0) std::memmove(to.data, from.data, to.bytes);
    }
    if (out.over() && in.over()) return;
    progress_->abort({comm_fault::mismatch,
                      {progress_->number()},
                      "rank " + std::to_string(progress_->number()) + " sends to itself " +
                          std::to_string(out.transfers.size()) + " times and receives from itself " +
                          std::to_string(in.transfers.size()) + " times in one exchange",
                      call_.at.text()});
    progress_->raise(call_);
  }

  [[noreturn]] void refuse(int sender, const control_message& rts, const p2p& expected) {
    abort_cause why;
    why.fault = comm_fault::mismatch;
    why.culprits = {sender};
    if (sender != progress_->number()) why.culprits.push_back(progress_->number());
    why.there = rts.text;
    why.message = "rank " + std::to_string(sender) + " sends " + std::to_string(rts.bytes) + " bytes with tag " +
                  std::to_string(rts.tag) + " at " + rts.text + ", rank " + std::to_string(progress_->number()) +
                  " expects " + std::to_string(expected.bytes) + " bytes with tag " + std::to_string(expected.tag) +
                  " at " + call_.at.text();
    progress_->abort(std::move(why));
    progress_->raise(call_);
  }

  group_state* group_;
  mpi_progress* progress_;
  lane lane_;
  clock::duration limit_;
  call_site call_;
  std::vector<direction> directions_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
