// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A fixed number of slots of one size, through which bytes stream from one tier to another: one is filled while another
// is used and a third is emptied. A slot is taken again when an event says that what held it is over: a stream waits
// for that, never the host, and nothing grows.
//
//   belay::slot_ring ring(memory, 2);
//   const auto slot = ring.acquire(copies);               // later work of `copies` may overwrite it
//   copies.copy(slot.data(), lower, slot.size());
//   copies.let_wait(compute, copies.record());
//   compute.run([=] { use(slot.data()); });
//   ring.release(compute.record());                       // the oldest: from that event on it is free
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

/// The contents of a slot when it is taken: what was in it, or a word that looks like no number.
enum class slot_contents : std::uint8_t { kept, poisoned };

/// Slots are taken in turn and given back in the same order, by one thread. The memory outlives the ring.
class slot_ring {
 public:
  slot_ring() = default;
  /// `memory` is divided into `slots` of equal size, rounded down to `alignment` bytes, a power of two, which divides
  /// the address too. With `poisoned`, the stream that takes a slot first overwrites it.
  slot_ring(std::span<std::byte> memory, std::size_t slot_count, std::size_t alignment = 64,
            slot_contents found = slot_contents::kept)
      : memory_(memory), slots_(slot_count), found_(found) {
    bytes_ = slot_count == 0 ? 0 : memory.size() / slot_count / alignment * alignment;
  }

  /// The next slot, once later work of `stream` waits for what held it. Throws usage_error where all are held: as many
  /// may be as there are slots.
  template <class Stream>
  [[nodiscard]] std::span<std::byte> acquire(Stream& stream, where at = where::current()) {
    if (acquired_ - released_ == slots_.size()) [[unlikely]]
      refuse(at);
    const std::size_t number = acquired_++ % slots_.size();
    stream.wait(slots_[number], at);
    const std::span<std::byte> memory = slot(number);
    if (found_ == slot_contents::poisoned) [[unlikely]]
      stream.run([first = reinterpret_cast<std::uint32_t*>(memory.data()), words = memory.size() / 4] {
        std::fill_n(first, words, 0xFFFAFFFAU);
      });
    return memory;
  }
  /// Gives back the slot that was taken first: it is free when `over` is reached.
  void release(stream_event over, where at = where::current()) {
    if (acquired_ == released_) [[unlikely]]
      throw usage_error("a slot is given back that was not taken", at);
    slots_[released_++ % slots_.size()] = std::move(over);
  }

  /// The memory of slot `number`, whoever holds it.
  [[nodiscard]] std::span<std::byte> slot(std::size_t number) const noexcept {
    return memory_.subspan(number * bytes_, bytes_);
  }
  /// The number of the slot that `acquire` gives next, from 0.
  [[nodiscard]] std::size_t next() const noexcept { return slots_.empty() ? 0 : acquired_ % slots_.size(); }
  [[nodiscard]] std::size_t slot_count() const noexcept { return slots_.size(); }
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return bytes_; }
  /// Slots that were taken and not given back.
  [[nodiscard]] std::size_t held() const noexcept { return static_cast<std::size_t>(acquired_ - released_); }
  /// Between two uses, also where an exception has cut off the first: all slots are free, nothing is waited for, and
  /// the first slot is the next.
  void reset() noexcept {
    acquired_ = released_ = 0;
    for (stream_event& each : slots_) each = {};
  }

 private:
  [[noreturn, gnu::cold, gnu::noinline]] void refuse(where at) const {
    throw usage_error("all " + std::to_string(slots_.size()) +
                          " slots of a ring are held: give one back by release(event) before the next is taken",
                      at);
  }

  std::span<std::byte> memory_;
  std::vector<stream_event> slots_;  // when each is free
  std::size_t bytes_ = 0;
  std::uint64_t acquired_ = 0, released_ = 0;
  slot_contents found_ = slot_contents::kept;
};

}  // namespace belay::inline BELAY_ABI
