// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Grouped sends and receives between pairs. Each ordered pair of ranks has one mailbox: the sender posts where its
// bytes are, the receiver copies them out. Bytes that the receiver has not mapped, and few bytes, go through the
// mailbox itself, in pieces. A transfer is over on both sides only when the receiver has its bytes. A rank that gives
// up takes its messages back first, so that nothing reads its memory afterwards.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/p2p/mailbox.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

class wait_diagnosis;

/// One lane of one group, as one of its ranks sees it.
class p2p_transport {
 public:
  p2p_transport(world_status& world, const address_map& memory, std::span<const int> members, lane which,
                std::uint32_t group, int me, group_layout shared);
  p2p_transport(const p2p_transport&) = delete;
  p2p_transport& operator=(const p2p_transport&) = delete;
  ~p2p_transport();

  /// Runs this rank's transfers; returns when all have met their partners.
  void run(std::span<const p2p> transfers, world_status::clock::duration timeout, where at);

 private:
  // One direction with one peer: the next transfer, how far it is, and whether this rank's message is in the mailbox.
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
  [[nodiscard]] mailbox& mailbox_of(int from, int to) const noexcept { return shared_.mailbox_of(lane_, from, to); }
  [[nodiscard]] p2p_doorbell& doorbell_of(int who) const noexcept { return shared_.doorbells(lane_)[who]; }
  [[nodiscard]] flight_recorder<>& recorder() const noexcept { return world_->recorder(world_rank(me_), lane_); }
  [[nodiscard]] cursor& cursor_of(p2p::direction kind, int peer) noexcept {
    const std::size_t base = kind == p2p::direction::send ? 0 : members_.size();
    return cursors_[base + static_cast<std::size_t>(peer)];
  }
  // The next transfer of a direction with a peer; null when there is none left.
  [[nodiscard]] static const p2p* next_of(const session& now, cursor& at, p2p::direction kind, int peer) noexcept;
  [[nodiscard]] bool waits_for(const session& now, int peer) noexcept;

  // True when something moved or nothing is left.
  bool progress(session& now);
  // True when a message was read: the transfer, or a piece of it, is over.
  bool send(session& now, cursor& at, const p2p& transfer);
  bool receive(session& now, cursor& at, const p2p& transfer);
  void post(mailbox& there, cursor& at, const p2p& transfer);
  [[nodiscard]] transfer_path path_of(const p2p& transfer, memory_reference from) const noexcept;
  // The bytes of a message, by the path that the sender has chosen.
  void read(session& now, const p2p& transfer, mailbox& there, const transfer_step& step);
  // Bytes that this rank has mapped. No other rank copies them: this one tunes alone.
  void copy_mapped(void* to, const std::byte* from, std::size_t bytes);

  [[noreturn, gnu::cold]] void refuse(session& now, const p2p& transfer, mailbox& there, std::uint64_t moved);
  [[noreturn, gnu::cold]] void cannot_read(session& now, mailbox& there, const p2p& transfer, int error);
  [[noreturn, gnu::cold]] void abort_and_refuse(session& now, mailbox& there, int peer, const abort_cause& why);
  // The wait was interrupted and nothing had moved: finds out why.
  [[gnu::cold]] void give_up(session& now, wait_diagnosis& missing, deadline& limit);
  [[noreturn, gnu::cold]] void fail(session& now, double seconds = 0);
  // Afterwards no peer reads this rank's memory, or it learns that it was in vain.
  void take_back() noexcept;

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

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/p2p/p2p_transport.ipp"  // IWYU pragma: export
#endif
