// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The steps by which one rank goes through an operation together with its group: publish and await, step inside, come
// to a round, step outside, or withdraw when the world has stopped. Nothing else is here, so that a model checker can
// run exactly these steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "belay/backend/host/copy/copy.hpp"
#include "belay/backend/host/memory/address_space.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/core/config.hpp"
#include "belay/core/prefetch.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How the lines of an operation were found. `missing`: the wait for one ended before it was there.
enum class flag_lines : std::uint8_t { missing, different, alike };

/// One rank's way through its operations. `Hall` is what the group shares, as this rank sees it:
///   int me(), size(); place<Atomics>& place_of(int); event_count<...>& bell_of(int); bool stopped(memory_order);
///   address_space space(); void yield();
/// A `wait(who, done)` handed in waits on the bell of rank `who` until `done(memory_order)`; it returns false, or
/// throws, when the world stopped first.
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
  /// The rank `k` places behind this one, in a circle. Loops over all peers begin at the first of them: for two ranks
  /// they end where they began, which a processor guesses right however long a call has not been made.
  [[nodiscard]] int behind(int k) const noexcept {
    const int q = lane_.me() + k;
    return q < lane_.size() ? q : q - lane_.size();
  }
  [[nodiscard]] bool has_come(int who) const noexcept { return lane_.flags_of(who).has_come(operation_number_); }

  /// This rank's line, written before, is there.
  void publish(std::uint32_t print) noexcept {
    mine_->publish({operation_number_, print});
    lane_.doorbell_of(lane_.me()).notify_sleepers();
  }
  /// The same where the line is full. A peer that looks for it takes it away between its last bytes and an exchange,
  /// which waits for them; a store follows them at once.
  void publish_full(std::uint32_t print) noexcept {
    mine_->release({operation_number_, print});
    ring();
  }
  /// Before this rank's line is written, while there is time: gets it back from peers.
  void prepare_to_publish() const noexcept { prefetch_for_write(&mine_->flag_line_of(operation_number_)); }
  /// Between `publish` and `leave`, while there is time: gets back from peers what `leave` will write.
  void prepare_to_leave() const noexcept {
    if (early_fetches_pay()) prefetch_for_write(&mine_->outside);
  }
  /// Returns when all lines are there, with whether all call what this rank's does.
  template <class Wait>
  [[nodiscard]] flag_lines await_flag_lines(std::uint32_t print, Wait wait) const {
    const flag_word mine{operation_number_, print};
    flag_lines out = flag_lines::alike;
    for (int k = 1; k < lane_.size(); ++k) {
      const int q = behind(k);
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

  /// Before this rank touches what belongs to others. False: it must not, because the world has stopped.
  [[nodiscard]] bool begin_access() noexcept {
    if (lane_.space() == address_space::one)
      mine_->begin_access(operation_number_);  // nobody waits for a process; see withdraw
    return !lane_.aborted(std::memory_order_seq_cst);
  }
  /// Returns when all ranks, each inside, have called it as often.
  template <class Wait>
  bool meet(Wait wait) {
    mine_->enter_round(++rounds_);
    ring();
    return await(wait, [round = rounds_](const auto& other, auto order) { return other.is_past(round, order); });
  }
  /// Returns when all have left: nobody touches what belongs to others any more. False between processes if the world
  /// has stopped: a peer that did not wait for this rank may have changed what it read.
  template <class Wait>
  [[nodiscard]] bool exit(Wait wait) {
    end_access();
    if (early_fetches_pay()) prefetch_for_write(&mine_->flag_line_of(operation_number_ + 1));
    const auto outside = [operation_number = operation_number_](const auto& other, auto order) {
      return other.has_ended_access(operation_number, order);
    };
    if (!await(wait, outside)) return false;
    return lane_.space() == address_space::one || !lane_.aborted(std::memory_order_seq_cst);
  }

  /// Instead of `leave` in a turn in which nobody touched more than lines and pages, which wait for the turn after
  /// next.
  void exit_without_wait() noexcept {
    if (lane_.space() == address_space::one) mine_->end_access(operation_number_);
  }

  /// After the world has stopped, instead of `leave`. Among threads: returns when nobody uses what this rank payloads.
  /// A process does not wait, because who is inside may have died there.
  void drain_access() noexcept {
    if (lane_.space() != address_space::one) return;
    end_access();
    for (int k = 1; k < lane_.size(); ++k) {
      while (lane_.flags_of(behind(k)).is_accessing(operation_number_)) lane_.yield();
    }
  }

 private:
  void ring() const noexcept { lane_.doorbell_of(lane_.me()).notify_after_release(); }
  void end_access() noexcept {
    mine_->end_access(operation_number_);
    ring();
  }
  template <class Wait, class There>
  bool await(Wait& wait, There there) const {
    for (int k = 1; k < lane_.size(); ++k) {
      const int q = behind(k);
      const auto& other = lane_.flags_of(q);
      const auto done = [&](std::memory_order order) { return there(other, order); };
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
