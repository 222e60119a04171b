// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The protocol of a mailbox between two ranks: the sender posts a message, the receiver reads it and what it refers to,
// and ends the read. A sender that gives up takes its message back: nothing reads its memory afterwards, or what was
// read is not taken for the message.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <cstdint>

#include "belay/backend/host/memory/address_space.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// A mailbox is empty, full once a message is posted, and being read; or its message was refused by either side.
enum class mailbox_state : std::uint32_t { empty, full, reading, refused };

/// The model checker instantiates it with its own atomics.
template <atomics_policy Atomics = std_atomics>
class mailbox_flag {
 public:
  /// Sequentially consistent, because it is also the look of a rank that is about to sleep.
  [[nodiscard]] mailbox_state state() const noexcept { return state_.load(std::memory_order_seq_cst); }

  /// The sender, while the mailbox is empty: what it wrote before is the message. Then it notifies the receiver.
  void post() noexcept { state_.store(mailbox_state::full, std::memory_order_seq_cst); }

  /// The receiver: true when it may read.
  [[nodiscard]] bool begin_read() noexcept {
    mailbox_state expected = mailbox_state::full;
    return state() == mailbox_state::full &&
           state_.compare_exchange_strong(expected, mailbox_state::reading, std::memory_order_acquire,
                                          std::memory_order_relaxed);
  }
  /// The receiver, when it has read; then it notifies the sender. False: the sender has given up meanwhile, and what
  /// was read must not be used.
  [[nodiscard]] bool end_read() noexcept {
    mailbox_state expected = mailbox_state::reading;
    return state_.compare_exchange_strong(expected, mailbox_state::empty, std::memory_order_seq_cst,
                                          std::memory_order_relaxed);
  }
  /// The receiver: the message does not fit, or cannot be read. The world has been aborted before; then the receiver
  /// notifies the sender, whether that sleeps or not.
  void refuse() noexcept { state_.store(mailbox_state::refused, std::memory_order_release); }

  /// The sender, after the world has been aborted. Among threads: returns when the receiver reads no more. Between
  /// processes the receiver may have died while reading; one that still reads learns from `end_read` that it was in
  /// vain.
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
