// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The protocol of a letter box between two ranks: the sender puts a letter in, the receiver opens it, reads what it
// speaks of and empties the box. A sender that gives up takes its letter back, so that nobody reads its memory
// afterwards, or is not believed to have read it.
#pragma once

#include <atomic>
#include <cstdint>

#include "belay/backend/host/memory/address_space.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A letter is put in (full), opened by the receiver (reading) and gone (empty), or refused by either.
enum class mailbox_state : std::uint32_t { empty, full, reading, refused };

template <atomics_policy Atomics = std_atomics>
class mailbox_flap {
 public:
  /// Sequentially consistent, because it is also the look of one who is about to sleep.
  [[nodiscard]] mailbox_state look() const noexcept { return state_.load(std::memory_order_seq_cst); }

  /// The sender, while the box is empty: what it wrote before is the letter. Then it rings the receiver.
  void put() noexcept { state_.store(mailbox_state::full, std::memory_order_seq_cst); }

  /// The receiver: true when it may read.
  [[nodiscard]] bool open() noexcept {
    mailbox_state expected = mailbox_state::full;
    return look() == mailbox_state::full &&
           state_.compare_exchange_strong(expected, mailbox_state::reading, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  /// The receiver, when it has read; then it rings the sender. False: the sender has given up meanwhile, and what was
  /// read is worth nothing.
  [[nodiscard]] bool empty() noexcept {
    mailbox_state expected = mailbox_state::reading;
    return state_.compare_exchange_strong(expected, mailbox_state::empty, std::memory_order_seq_cst,
                                          std::memory_order_relaxed);
  }
  /// The receiver: the letter does not fit, or cannot be read. The world has been stopped before; then it rings the
  /// sender, whether that sleeps or not.
  void refuse() noexcept { state_.store(mailbox_state::refused, std::memory_order_release); }

  /// The sender, after the world has stopped: among threads, returns when the receiver reads no more. Between processes
  /// it may have died at that; it may still read then, but learns that it was in vain.
  void take_back(address_space space) noexcept {
    mailbox_state expected = mailbox_state::full;
    while (!state_.compare_exchange_strong(expected, mailbox_state::refused, std::memory_order_acquire)) {
      if (expected != mailbox_state::reading && expected != mailbox_state::full) return;
      if (space == address_space::one && expected == mailbox_state::reading) {
        Atomics::yield();
        expected = mailbox_state::full;
      }
    }
  }

 private:
  typename Atomics::template atomic<mailbox_state> state_{mailbox_state::empty};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
