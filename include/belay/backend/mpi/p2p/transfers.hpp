// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The bytes of an operation, and grouped sends and receives between pairs. Bytes go through bounce buffers, chunk by
// chunk: when an operation fails, its rank gets its memory back at once although the MPI library may still read what
// was sent, and what arrives late is not written to it. A chunk of a peer is delivered only after the same range to
// that peer has been copied out, so parts may change places in one buffer. Of a pair the sender requests to send, the
// receiver compares the request with what it expects and clears it, and only then bytes move; so a transfer is over on
// both sides only when it has met its partner, and a pair that disagrees has written nothing.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/progress/control_message.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/backend/mpi/rendezvous/group_state.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Bytes that go to a rank of the world, and bytes that come from it.
struct transfer {
  int peer = 0;
  const std::byte* out = nullptr;
  std::size_t out_bytes = 0;
  std::byte* in = nullptr;
  std::size_t in_bytes = 0;

  template <class T>
  void send(const T* from, std::size_t count) noexcept {
    out = reinterpret_cast<const std::byte*>(from);
    out_bytes = count * sizeof(T);
  }
  template <class T>
  void receive(T* to, std::size_t count) noexcept {
    in = reinterpret_cast<std::byte*>(to);
    in_bytes = count * sizeof(T);
  }
};

/// All transfers of one operation over one communicator.
class chunked_transfer {
 public:
  explicit chunked_transfer(MPI_Comm comm) noexcept : comm_(comm) {}
  chunked_transfer(const chunked_transfer&) = delete;
  chunked_transfer& operator=(const chunked_transfer&) = delete;
  // The library may still use the bounce buffers of requests that are not complete: they are never freed.
  ~chunked_transfer() {
    for (active_transfer& one : transfers_) {
      if (one.in != MPI_REQUEST_NULL) {
        MPI_Cancel(&one.in);
        static_cast<void>(one.in_stage.release());
      }
      if (one.out != MPI_REQUEST_NULL) static_cast<void>(one.out_stage.release());
    }
  }

  void add(const transfer& what) {
    if (what.out_bytes > 0 || what.in_bytes > 0) transfers_.emplace_back().what = what;
  }

  /// Moves what can be moved; true when all is over. What is added later makes it false again.
  bool progress() {
    bool over = true;
    for (active_transfer& one : transfers_) {
      send(one);
      receive(one);
      over = over && one.over();
    }
    return over;
  }

  /// Calls `tell(peer, false)` for each transfer that is not over.
  template <class Report>
  void remaining(Report tell) const {
    for (const active_transfer& one : transfers_) {
      if (!one.over()) tell(one.what.peer, false);
    }
  }

 private:
  static constexpr int data_tag = 3;
  static constexpr std::size_t chunk = 256 * 1024;

  struct active_transfer {
    transfer what;
    std::size_t staged = 0, sent = 0, received = 0;
    MPI_Request out = MPI_REQUEST_NULL, in = MPI_REQUEST_NULL;
    std::unique_ptr<std::byte[]> out_stage, in_stage;
    bool arrived = false;

    [[nodiscard]] bool over() const noexcept { return sent == what.out_bytes && received == what.in_bytes; }
  };

  static std::byte* stage(std::unique_ptr<std::byte[]>& at, std::size_t bytes) {
    if (at == nullptr) at.reset(new std::byte[lesser_of(chunk, bytes)]);
    return at.get();
  }

  void send(active_transfer& one) const {
    if (one.out != MPI_REQUEST_NULL) {
      int complete = 0;
      expect(MPI_Test(&one.out, &complete, MPI_STATUS_IGNORE), "MPI_Test of a send", one.what.peer);
      if (complete == 0) return;
      one.sent = one.staged;
    }
    if (one.staged == one.what.out_bytes) return;
    const std::size_t length = lesser_of(chunk, one.what.out_bytes - one.staged);
    std::byte* const bytes = stage(one.out_stage, one.what.out_bytes);
    std::memcpy(bytes, one.what.out + one.staged, length);
    const int size = static_cast<int>(length);
    expect(MPI_Isend(bytes, size, MPI_BYTE, one.what.peer, data_tag, comm_, &one.out), "MPI_Isend", one.what.peer);
    one.staged += length;
  }

  void receive(active_transfer& one) const {
    while (one.received < one.what.in_bytes) {
      const std::size_t length = lesser_of(chunk, one.what.in_bytes - one.received);
      if (one.in == MPI_REQUEST_NULL && !one.arrived) {
        std::byte* const bytes = stage(one.in_stage, one.what.in_bytes);
        const int size = static_cast<int>(length);
        expect(MPI_Irecv(bytes, size, MPI_BYTE, one.what.peer, data_tag, comm_, &one.in), "MPI_Irecv", one.what.peer);
      }
      if (!one.arrived) {
        int complete = 0;
        expect(MPI_Test(&one.in, &complete, MPI_STATUS_IGNORE), "MPI_Test of a receive", one.what.peer);
        if (complete == 0) return;
        one.arrived = true;
      }
      if (one.staged < lesser_of(one.what.out_bytes, one.received + length)) return;
      std::memcpy(one.what.in + one.received, one.in_stage.get(), length);
      one.received += length;
      one.arrived = false;
    }
  }

  MPI_Comm comm_;
  std::vector<active_transfer> transfers_;
};

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
