// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The last operations of a rank, so that an error can say what a missing peer was doing. One thread writes,
// any other may read at any time: every field is an atomic, and an entry that changed while it was read is
// read again. No clock is read: an operation that does not wait must not pay for one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// What one operation was: `number` counts the operations of its group from 0; `group` is the group's name.
struct flight_record {
  operation what = operation::none;
  bool finished = false;
  std::uint32_t group = 0;
  std::uint64_t number = 0;
  std::size_t bytes = 0;
  where at;

  /// "in barrier #3 at train.cpp:88", "after barrier #3 of group 2 at train.cpp:88", "before its first
  /// operation"; group 0 is the world.
  [[nodiscard]] std::string text() const {
    if (what == operation::none) return "before its first operation";
    return std::string(finished ? "after " : "in ") + name(what) + " #" + std::to_string(number) +
           (group == 0 ? std::string() : " of group " + std::to_string(group)) + " at " + at.text();
  }
};

template <std::size_t Capacity = 256>
class flight_recorder {
 public:
  void enter(const flight_record& now) noexcept {
    const std::uint64_t turn = written_.load(std::memory_order_relaxed);
    entry& slot = ring_[turn % Capacity];
    slot.stamp.store(2 * turn + 1, std::memory_order_relaxed);  // odd: being written
    slot.what.store(now.what, std::memory_order_release);
    slot.finished.store(false, std::memory_order_release);
    slot.group.store(now.group, std::memory_order_release);
    slot.number.store(now.number, std::memory_order_release);
    slot.bytes.store(now.bytes, std::memory_order_release);
    slot.file.store(now.at.file, std::memory_order_release);
    slot.function.store(now.at.function, std::memory_order_release);
    slot.line.store(now.at.line, std::memory_order_release);
    slot.stamp.store(2 * turn + 2, std::memory_order_release);
    written_.store(turn + 1, std::memory_order_release);
  }

  /// The operation entered last is over.
  void leave() noexcept {
    const std::uint64_t turn = written_.load(std::memory_order_relaxed);
    if (turn > 0) ring_[(turn - 1) % Capacity].finished.store(true, std::memory_order_release);
  }

  /// Operations entered so far.
  [[nodiscard]] std::uint64_t count() const noexcept { return written_.load(std::memory_order_acquire); }

  /// Operation `turn` (from 0); an empty record when it is no longer, or not yet, in the ring.
  [[nodiscard]] flight_record operator[](std::uint64_t turn) const noexcept {
    const entry& slot = ring_[turn % Capacity];
    if (slot.stamp.load(std::memory_order_acquire) != 2 * turn + 2) return {};
    flight_record out;
    out.what = slot.what.load(std::memory_order_acquire);
    out.finished = slot.finished.load(std::memory_order_acquire);
    out.group = slot.group.load(std::memory_order_acquire);
    out.number = slot.number.load(std::memory_order_acquire);
    out.bytes = slot.bytes.load(std::memory_order_acquire);
    out.at.file = slot.file.load(std::memory_order_acquire);
    out.at.function = slot.function.load(std::memory_order_acquire);
    out.at.line = slot.line.load(std::memory_order_acquire);
    return slot.stamp.load(std::memory_order_relaxed) == 2 * turn + 2 ? out : flight_record{};
  }

  /// The operation entered last; an empty record before the first.
  [[nodiscard]] flight_record last() const noexcept {
    for (int attempt = 0; attempt < 3; ++attempt) {
      const std::uint64_t turn = count();
      if (turn == 0) return {};
      const flight_record out = (*this)[turn - 1];
      if (out.what != operation::none) return out;
    }
    return {};
  }

 private:
  struct entry {
    std::atomic<std::uint64_t> stamp{0};
    std::atomic<operation> what{operation::none};
    std::atomic<bool> finished{false};
    std::atomic<std::uint32_t> group{0};
    std::atomic<std::uint64_t> number{0};
    std::atomic<std::size_t> bytes{0};
    std::atomic<const char*> file{""};
    std::atomic<const char*> function{""};
    std::atomic<int> line{0};
  };

  std::array<entry, Capacity> ring_{};
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace belay::inline BELAY_ABI
