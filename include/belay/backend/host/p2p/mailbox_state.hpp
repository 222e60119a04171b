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
enum class letter : std::uint32_t { empty, full, reading, refused };

template <atomics_policy Atomics = std_atomics>
class letter_flap {
 public:
  /// Sequentially consistent, because it is also the look of one who is about to sleep.
  [[nodiscard]] letter look() const noexcept { return state_.load(std::memory_order_seq_cst); }

  /// The sender, while the box is empty: what it wrote before is the letter. Then it rings the receiver.
  void put() noexcept { state_.store(letter::full, std::memory_order_seq_cst); }

  /// The receiver: true when it may read.
  [[nodiscard]] bool open() noexcept {
    letter expected = letter::full;
    return look() == letter::full && state_.compare_exchange_strong(expected, letter::reading,
                                                                    std::memory_order_acquire, std::memory_order_relaxed);
  }
  /// The receiver, when it has read; then it rings the sender. False: the sender has given up meanwhile, and what was
  /// read is worth nothing.
  [[nodiscard]] bool empty() noexcept {
    letter expected = letter::reading;
    return state_.compare_exchange_strong(expected, letter::empty, std::memory_order_seq_cst, std::memory_order_relaxed);
  }
  /// The receiver: the letter does not fit, or cannot be read. The world has been stopped before; then it rings the
  /// sender, whether that sleeps or not.
  void refuse() noexcept { state_.store(letter::refused, std::memory_order_release); }

  /// The sender, after the world has stopped: among threads, returns when the receiver reads no more. Between processes
  /// it may have died at that; it may still read then, but learns that it was in vain.
  void take_back(address_space space) noexcept {
    letter expected = letter::full;
    while (!state_.compare_exchange_strong(expected, letter::refused, std::memory_order_acquire)) {
      if (expected != letter::reading && expected != letter::full) return;
      if (space == address_space::one && expected == letter::reading) {
        Atomics::yield();
        expected = letter::full;
      }
    }
  }

 private:
  typename Atomics::template atomic<letter> state_{letter::empty};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
