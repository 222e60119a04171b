// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The steps by which one rank goes through an operation together with its group: publish its flag line and await all,
// begin an access, pass a round, end the access, or drain it when the world has been aborted. Nothing else is here, so
// that the model checker runs exactly these steps.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The result of a wait for all flag lines. `missing`: the wait for one ended before it was there.
enum class flag_lines : std::uint8_t { missing, different, alike };

/// One rank's operations in one lane of a group. `LaneView` is what the group shares, as this rank sees it:
///   int me(), size(); peer_flags<Atomics>& flags_of(int); event_count<...>& doorbell_of(int);
///   bool aborted(memory_order); address_space space(); void yield();
/// A `wait(who, done)` that a step is given waits at the doorbell of rank `who` until `done(memory_order)`; when the
/// world is aborted first, it returns false or throws.
template <class LaneView>
class rendezvous {
 public:
  explicit rendezvous(LaneView lane_view) noexcept : lane_(std::move(lane_view)), mine_(&lane_.flags_of(lane_.me())) {}

  [[nodiscard]] const LaneView& lane_view() const noexcept { return lane_; }
  /// The present operation, counted from 1.
  [[nodiscard]] std::uint32_t operation_number() const noexcept { return operation_number_; }
  void next_operation() noexcept { ++operation_number_; }

  /// The present operation's line of rank `who`.
  [[nodiscard]] auto& flag_line_of(int who) const noexcept {
    return lane_.flags_of(who).flag_line_of(operation_number_);
  }
  [[nodiscard]] std::uint32_t fingerprint_of(int who) const noexcept {
    return lane_.flags_of(who).fingerprint_of(operation_number_);
  }
  /// The rank `k` after this one, in a ring. Loops over all peers begin with the first of them: for two ranks such a
  /// loop ends where it began, which a branch predictor guesses right however long ago the last call was.
  [[nodiscard]] int ring_peer(int k) const noexcept {
    const int q = lane_.me() + k;
    return q < lane_.size() ? q : q - lane_.size();
  }
  [[nodiscard]] bool has_reached(int who) const noexcept { return lane_.flags_of(who).has_reached(operation_number_); }

  /// Publishes this rank's line, whose payload was written before.
  void publish(std::uint32_t print) noexcept {
    mine_->publish({operation_number_, print});
    lane_.doorbell_of(lane_.me()).notify_sleepers();
  }
  /// Publishes this rank's line, whose payload was written before and is long. An atomic exchange would wait for the
  /// payload's last bytes, and a peer's look could take the line away meanwhile; a releasing store follows them at
  /// once.
  void publish_full(std::uint32_t print) noexcept {
    mine_->release({operation_number_, print});
    notify();
  }
  /// Before this rank's payload is written: gets the line back from peers' caches.
  void prepare_to_publish() const noexcept { prefetch_for_write(&mine_->flag_line_of(operation_number_)); }
  /// Between `publish` and `exit`: gets back from peers' caches what `exit` will write.
  void prepare_to_exit() const noexcept {
    if (early_fetches_pay()) prefetch_for_write(&mine_->access_ended);
  }
  /// Returns when all lines are there, with whether all call what this rank's does.
  template <class Wait>
  [[nodiscard]] flag_lines await_flag_lines(std::uint32_t print, Wait wait) const {
    const flag_word mine{operation_number_, print};
    flag_lines out = flag_lines::alike;
    for (int k = 1; k < lane_.size(); ++k) {
      const int q = ring_peer(k);
      const auto& other = lane_.flags_of(q);
      if (other.calls(mine)) continue;
      const auto arrived = [&other, operation_number = operation_number_](std::memory_order order) {
        return other.arrived(operation_number, order);
      };
      if (!arrived(std::memory_order_acquire) && !wait(q, arrived)) return flag_lines::missing;
      if (other.fingerprint_of(operation_number_) != print) out = flag_lines::different;
    }
    return out;
  }

  /// Before this rank touches peers' buffers. False: it must not, because the world has been aborted.
  [[nodiscard]] bool begin_access() noexcept {
    if (lane_.space() == address_space::one)
      mine_->begin_access(operation_number_);  // a process is not waited for; see drain_access
    return !lane_.aborted(std::memory_order_seq_cst);
  }
  /// A barrier within the access: returns when all ranks have called it as often.
  template <class Wait>
  bool pass_round(Wait wait) {
    mine_->enter_round(++rounds_);
    notify();
    return await_peers(
        wait, [round = rounds_](const auto& peer, auto order) { return peer.has_entered_round(round, order); });
  }
  /// Ends the access and returns when all ranks have ended theirs: no buffer is touched by a peer any more. False
  /// between processes if the world has been aborted: a peer that did not wait for this rank may have changed what it
  /// read.
  template <class Wait>
  [[nodiscard]] bool exit(Wait wait) {
    end_access();
    if (early_fetches_pay()) prefetch_for_write(&mine_->flag_line_of(operation_number_ + 1));
    const auto ended = [operation_number = operation_number_](const auto& peer, auto order) {
      return peer.has_ended_access(operation_number, order);
    };
    if (!await_peers(wait, ended)) return false;
    return lane_.space() == address_space::one || !lane_.aborted(std::memory_order_seq_cst);
  }

  /// Instead of `exit` in an operation in which no rank touched more than flag lines and eager buffers. Their next use
  /// is the operation after the next, which waits by itself.
  void exit_without_wait() noexcept {
    if (lane_.space() == address_space::one) mine_->end_access(operation_number_);
  }

  /// Instead of `exit` after the world has been aborted. Among threads: returns when no peer uses this rank's buffers.
  /// A process does not wait, because a peer with a begun access may have died.
  void drain_access() noexcept {
    if (lane_.space() != address_space::one) return;
    end_access();
    for (int k = 1; k < lane_.size(); ++k) {
      while (lane_.flags_of(ring_peer(k)).is_accessing(operation_number_)) lane_.yield();
    }
  }

 private:
  void notify() const noexcept { lane_.doorbell_of(lane_.me()).notify_after_release(); }
  void end_access() noexcept {
    mine_->end_access(operation_number_);
    notify();
  }
  template <class Wait, class Reached>
  bool await_peers(Wait& wait, Reached reached) const {
    for (int k = 1; k < lane_.size(); ++k) {
      const int q = ring_peer(k);
      const auto& peer = lane_.flags_of(q);
      const auto done = [&](std::memory_order order) { return reached(peer, order); };
      if (!done(std::memory_order_acquire) && !wait(q, done)) return false;
    }
    return true;
  }

  LaneView lane_;
  std::remove_reference_t<decltype(lane_.flags_of(0))>* mine_;
  std::uint32_t operation_number_ = 0;
  std::uint32_t rounds_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
