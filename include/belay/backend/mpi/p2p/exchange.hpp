// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped sends and receives between pairs. A sender offers, the receiver compares the offer with what it expects
// and accepts, and only then bytes move; so a transfer is over on both sides only when it has met its partner, and
// a pair that disagrees has written nothing.
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
#include "belay/comm/call_arguments.hpp"
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
      : group_(&group), over_(group.over.get()), lane_(which), limit_(limit), directions_(group.members.size() * 2) {
    const std::size_t bytes = check_transfers(transfers, group.size(), at);
    for (const p2p& transfer : transfers) direction_of(transfer.kind, transfer.peer).push_back(transfer);
    call_ = {operation::exchange, group.id, group.exchanges[index(which)]++, bytes, at};
  }

  /// Returns when all transfers have met their partners.
  void run() {
    if (over_->aborted()) over_->raise(call_);
    over_->enter(lane_, call_);
    keep_own();
    over_->await(
        lane_, call_, limit_, [&] { return progress(); },
        [&](auto tell) {
          for (int peer = 0; peer < group_->size(); ++peer) {
            const bool waits = waits_for(p2p::direction::send, peer) || waits_for(p2p::direction::receive, peer);
            if (waits) tell(group_->world_rank(peer), !moving(peer));
          }
        });
    over_->finish(lane_);
  }

 private:
  enum class step : std::uint8_t { fresh, offered, moving };

  // The transfers of one direction with one peer, one after the other.
  struct direction {
    std::vector<p2p> transfers;
    std::size_t next = 0;
    step now = step::fresh;
    std::unique_ptr<chunked_transfer> bytes;

    void push_back(const p2p& transfer) { transfers.push_back(transfer); }
    [[nodiscard]] bool over() const noexcept { return next == transfers.size(); }
  };

  [[nodiscard]] direction& direction_of(p2p::direction kind, int peer) noexcept {
    return directions_[static_cast<std::size_t>(peer) * 2 + (kind == p2p::direction::send ? 0 : 1)];
  }
  [[nodiscard]] bool waits_for(p2p::direction kind, int peer) noexcept { return !direction_of(kind, peer).over(); }
  // Whether what is waited for is bytes that are on their way: then the peer has done its part.
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
    control_channel& box = over_->box(lane_);
    const int to = group_->world_rank(peer);
    if (out.now == step::fresh) {
      control_message offer;
      offer.kind = control_message_kind::offer;
      offer.group = group_->key;
      offer.number = call_.number;
      offer.print.what = operation::exchange;
      offer.bytes = transfer.bytes;
      offer.tag = transfer.tag;
      offer.text = call_.at.text();
      box.post(to, offer);
      out.now = step::offered;
    }
    if (out.now == step::offered) {
      if (box.first(group_->key, control_message_kind::accept, to) == nullptr) return false;
      static_cast<void>(box.take(group_->key, control_message_kind::accept, to));
      begin(out, {to, static_cast<const std::byte*>(transfer.data), transfer.bytes, nullptr, 0});
    }
    return finish(out);
  }

  bool receive(direction& in, int peer) {
    const p2p& transfer = in.transfers[in.next];
    control_channel& box = over_->box(lane_);
    const int from = group_->world_rank(peer);
    if (in.now != step::moving) {
      if (box.first(group_->key, control_message_kind::offer, from) == nullptr) return false;
      const control_message offer = box.take(group_->key, control_message_kind::offer, from);
      if (offer.bytes != transfer.bytes || offer.tag != transfer.tag) refuse(from, offer, transfer);
      control_message accept;
      accept.kind = control_message_kind::accept;
      accept.group = group_->key;
      accept.number = call_.number;
      box.post(from, accept);
      begin(in, {from, nullptr, 0, static_cast<std::byte*>(transfer.data), transfer.bytes});
    }
    return finish(in);
  }

  void begin(direction& which, const transfer& what) {
    which.bytes = std::make_unique<chunked_transfer>(over_->box(lane_).comm());
    which.bytes->add(what);
    which.now = step::moving;
  }
  static bool finish(direction& which) {
    if (!which.bytes->progress()) return false;
    which.bytes.reset();
    which.now = step::fresh;
    ++which.next;
    return true;
  }

  // What this rank sends to itself.
  void keep_own() {
    direction& out = direction_of(p2p::direction::send, group_->rank);
    direction& in = direction_of(p2p::direction::receive, group_->rank);
    while (!out.over() && !in.over()) {
      const p2p& from = out.transfers[out.next++];
      const p2p& to = in.transfers[in.next++];
      control_message offer;
      offer.bytes = from.bytes;
      offer.tag = from.tag;
      offer.text = call_.at.text();
      if (from.bytes != to.bytes || from.tag != to.tag) refuse(over_->number(), offer, to);
      if (to.bytes > 0) std::memmove(to.data, from.data, to.bytes);
    }
    if (out.over() && in.over()) return;
    over_->abort({comm_fault::mismatch,
                  {over_->number()},
                  "rank " + std::to_string(over_->number()) + " sends to itself " +
                      std::to_string(out.transfers.size()) + " times and receives from itself " +
                      std::to_string(in.transfers.size()) + " times in one exchange",
                  call_.at.text(),
                  false});
    over_->raise(call_);
  }

  [[noreturn]] void refuse(int sender, const control_message& offer, const p2p& expected) {
    abort_cause why;
    why.fault = comm_fault::mismatch;
    why.culprits = {sender};
    if (sender != over_->number()) why.culprits.push_back(over_->number());
    why.there = offer.text;
    why.message = "rank " + std::to_string(sender) + " sends " + std::to_string(offer.bytes) + " bytes with tag " +
                  std::to_string(offer.tag) + " at " + offer.text + ", rank " + std::to_string(over_->number()) +
                  " expects " + std::to_string(expected.bytes) + " bytes with tag " + std::to_string(expected.tag) +
                  " at " + call_.at.text();
    over_->abort(std::move(why));
    over_->raise(call_);
  }

  group_state* group_;
  mpi_progress* over_;
  lane lane_;
  clock::duration limit_;
  call_site call_;
  std::vector<direction> directions_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
