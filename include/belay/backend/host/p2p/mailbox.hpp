// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The mailbox between two ranks, and how the bytes of a transfer go through it. The sender posts a message, the
// receiver reads it and what it refers to, and ends the read. A sender that gives up takes its message back: nothing
// reads its memory afterwards, or what was read is not taken for the message.
//
// The sender decides once, before the first message, how the bytes get to the receiver, and every message repeats it:
// what a peer can do changes while a transfer is under way (it joins), and two ends that each decided would count
// different bytes.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <cstdint>

#include "belay/backend/host/memory/address_map.hpp"
#include "belay/core/bounds.hpp"
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

/// Through the mailbox in pieces; from memory that the receiver has mapped; or copied by the kernel (cma).
enum class transfer_path : std::uint32_t { pieces, mapped, cma };

/// One message's part of its transfer: the path, and in bytes the whole, what earlier messages moved, and what this one
/// moves.
struct transfer_step {
  transfer_path path = transfer_path::pieces;
  std::uint64_t total = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// One end of a direction between two ranks: how far the present transfer is. All sizes are bytes.
class transfer_end {
 public:
  /// The sender: the next message of a transfer of `total`, of which a piece holds `room`. `decide()` gives the path;
  /// it is asked before the first message only.
  template <class Decide>
  [[nodiscard]] transfer_step next(std::uint64_t total, std::uint64_t room, Decide decide) {
    if (!begun_) path_ = decide();
    begun_ = true;
    const std::uint64_t left = total - moved_;
    return {path_, total, moved_, path_ == transfer_path::pieces ? lesser_of(room, left) : left};
  }

  /// The receiver: whether a message continues the transfer of `total` where it is, and not beyond its end.
  [[nodiscard]] bool continues(const transfer_step& step, std::uint64_t total, std::uint64_t room) const noexcept {
    if (step.total != total || step.offset != moved_ || (begun_ && step.path != path_)) return false;
    const std::uint64_t left = total - moved_;
    switch (step.path) {
      case transfer_path::pieces: return step.bytes == lesser_of(room, left);
      case transfer_path::mapped:
      case transfer_path::cma: return step.bytes == left;
    }
    return false;
  }

  /// Either end, when the message has been read: true when the transfer is over, and the next one begins.
  bool advance(const transfer_step& step) noexcept {
    path_ = step.path;
    moved_ += step.bytes;
    begun_ = moved_ < step.total;
    if (!begun_) moved_ = 0;
    return !begun_;
  }

  [[nodiscard]] std::uint64_t moved() const noexcept { return moved_; }

 private:
  transfer_path path_ = transfer_path::pieces;
  bool begun_ = false;
  std::uint64_t moved_ = 0;
};

/// From one rank to another. The sender writes all but the flag while it is empty. Bytes that the receiver has not
/// mapped come in pieces, in the space behind the mailbox.
struct alignas(64) mailbox {
  mailbox_flag<> flag;
  std::int32_t tag = 0;
  std::uint64_t reference = 0;  // where the bytes are
  transfer_step step;
  std::uint16_t site = 0;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
