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

#include "belay/backend/host/memory/address_space.hpp"
#include "belay/backend/host/copy/copy.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How the lines of an operation were found. `missing`: the wait for one ended before it was there.
enum class lines_are : std::uint8_t { missing, different, alike };

/// One rank's way through its operations. `Hall` is what the group shares, as this rank sees it:
///   int me(), size(); place<Atomics>& place_of(int); wait_word<...>& bell_of(int); bool stopped(memory_order);
///   address_space space(); void yield();
/// A `wait(who, done)` handed in waits on the bell of rank `who` until `done(memory_order)`; it returns false, or
/// throws, when the world stopped first.
template <class Hall>
class crossing {
 public:
  explicit crossing(Hall hall) noexcept : hall_(std::move(hall)), mine_(&hall_.place_of(hall_.me())) {}

  [[nodiscard]] const Hall& hall() const noexcept { return hall_; }
  /// The present operation, counted from 1.
  [[nodiscard]] std::uint32_t turn() const noexcept { return turn_; }
  void next_turn() noexcept { ++turn_; }

  /// The present operation's line of rank `who`.
  [[nodiscard]] auto& line_of(int who) const noexcept { return hall_.place_of(who).line_of(turn_); }
  [[nodiscard]] std::uint32_t print_of(int who) const noexcept { return hall_.place_of(who).print_of(turn_); }
  /// The rank `k` places behind this one, in a circle. Loops over all peers begin at the first of them: for two ranks they
  /// end where they began, which a processor guesses right however long a call has not been made.
  [[nodiscard]] int behind(int k) const noexcept {
    const int q = hall_.me() + k;
    return q < hall_.size() ? q : q - hall_.size();
  }
  [[nodiscard]] bool has_come(int who) const noexcept { return hall_.place_of(who).has_come(turn_); }

  /// This rank's line, written before, is there.
  void publish(std::uint32_t print) noexcept {
    mine_->publish({turn_, print});
    hall_.bell_of(hall_.me()).ring_sleepers();
  }
  /// The same where the line is full. A peer that looks for it takes it away between its last bytes and an exchange, which
  /// waits for them; a store follows them at once.
  void publish_full(std::uint32_t print) noexcept {
    mine_->release({turn_, print});
    ring();
  }
  /// Before this rank's line is written, while there is time: gets it back from peers.
  void prepare_to_publish() const noexcept { fetch_to_write(&mine_->line_of(turn_)); }
  /// Between `publish` and `leave`, while there is time: gets back from peers what `leave` will write.
  void prepare_to_leave() const noexcept {
    if (early_fetches_pay()) fetch_to_write(&mine_->outside);
  }
  /// Returns when all lines are there, with whether all call what this rank's does.
  template <class Wait>
  [[nodiscard]] lines_are await_lines(std::uint32_t print, Wait wait) const {
    const line_word mine{turn_, print};
    lines_are out = lines_are::alike;
    for (int k = 1; k < hall_.size(); ++k) {
      const int q = behind(k);
      const auto& other = hall_.place_of(q);
      if (other.calls(mine)) continue;
      const auto arrived = [&other, turn = turn_](std::memory_order order) { return other.arrived(turn, order); };
      if (!arrived(std::memory_order_acquire) && !wait(q, arrived)) return lines_are::missing;
      if (other.print_of(turn_) != print) out = lines_are::different;
    }
    return out;
  }

  /// Before this rank touches what belongs to others. False: it must not, because the world has stopped.
  [[nodiscard]] bool step_inside() noexcept {
    if (hall_.space() == address_space::one) mine_->step_inside(turn_);  // nobody waits for a process; see withdraw
    return !hall_.stopped(std::memory_order_seq_cst);
  }
  /// Returns when all ranks, each inside, have called it as often.
  template <class Wait>
  bool meet(Wait wait) {
    mine_->step_round(++rounds_);
    ring();
    return await(wait, [round = rounds_](const auto& other, auto order) { return other.is_past(round, order); });
  }
  /// Returns when all have left: nobody touches what belongs to others any more. False between processes if the world
  /// has stopped: a peer that did not wait for this rank may have changed what it read.
  template <class Wait>
  [[nodiscard]] bool leave(Wait wait) {
    step_outside();
    if (early_fetches_pay()) fetch_to_write(&mine_->line_of(turn_ + 1));
    const auto outside = [turn = turn_](const auto& other, auto order) { return other.is_outside(turn, order); };
    if (!await(wait, outside)) return false;
    return hall_.space() == address_space::one || !hall_.stopped(std::memory_order_seq_cst);
  }

  /// Instead of `leave` in a turn in which nobody touched more than lines and pages, which wait for the turn after next.
  void depart() noexcept {
    if (hall_.space() == address_space::one) mine_->step_outside(turn_);
  }

  /// After the world has stopped, instead of `leave`. Among threads: returns when nobody uses what this rank brought.
  /// A process does not wait, because who is inside may have died there.
  void withdraw() noexcept {
    if (hall_.space() != address_space::one) return;
    step_outside();
    for (int k = 1; k < hall_.size(); ++k) {
      while (hall_.place_of(behind(k)).is_inside(turn_)) hall_.yield();
    }
  }

 private:
  void ring() const noexcept { hall_.bell_of(hall_.me()).ring_after_release(); }
  void step_outside() noexcept {
    mine_->step_outside(turn_);
    ring();
  }
  template <class Wait, class There>
  bool await(Wait& wait, There there) const {
    for (int k = 1; k < hall_.size(); ++k) {
      const int q = behind(k);
      const auto& other = hall_.place_of(q);
      const auto done = [&](std::memory_order order) { return there(other, order); };
      if (!done(std::memory_order_acquire) && !wait(q, done)) return false;
    }
    return true;
  }

  Hall hall_;
  std::remove_reference_t<decltype(hall_.place_of(0))>* mine_;
  std::uint32_t turn_ = 0;
  std::uint32_t rounds_ = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
