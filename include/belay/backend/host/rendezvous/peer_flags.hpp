// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The protocol by which the ranks of a group meet: one place a rank, written by its owner alone and read by all.
// A turn is one operation, counted from 1. A rank publishes a line for its turn: one word that holds the turn and
// what it calls, and 56 bytes beside it, so that one cache line carries a small operation whole. There are two lines,
// used in turn: nobody overwrites what somebody may still read, because a rank publishes turn n + 2 only after it saw
// everybody's line of turn n + 1, which each publishes after it has read all lines of turn n.
//
// Where peers read and write each other's buffers, a rank steps inside before it touches any and steps outside when it
// is done; who gives up waits for those who are inside, and who finds the world stopped does not step inside. The
// two looks are sequentially consistent, so that at least one of the two sees the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What a rank has published: the turn in the upper half, what it calls in the lower.
struct flag_word {
  std::uint32_t operation_number = 0;
  std::uint32_t print = 0;

  [[nodiscard]] static constexpr flag_word of(std::uint64_t bits) noexcept {
    return {static_cast<std::uint32_t>(bits >> 32), static_cast<std::uint32_t>(bits)};
  }
  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return std::uint64_t{operation_number} << 32 | print; }
};

/// Copies up to a line, fewer than 64 bytes, without a call: by two pieces of a size that may overlap.
[[gnu::always_inline]] inline void copy_flag_payload(std::byte* to, const void* from, std::size_t bytes) noexcept {
  const auto* const source = static_cast<const std::byte*>(from);
  const auto by = [&](auto size) {
    if (bytes < size()) return false;
    std::memcpy(to, source, size());
    std::memcpy(to + bytes - size(), source + bytes - size(), size());
    return true;
  };
  if (bytes == 0 || by(std::integral_constant<std::size_t, 32>()) || by(std::integral_constant<std::size_t, 16>()) ||
      by(std::integral_constant<std::size_t, 8>()) || by(std::integral_constant<std::size_t, 4>()) ||
      by(std::integral_constant<std::size_t, 2>())) {
    return;
  }
  *to = *source;
}

/// What different ranks write lies so far apart: processors fetch lines in pairs.
inline constexpr std::size_t cache_line_pair_bytes = 128;

template <atomics_policy Atomics = std_atomics>
struct alignas(cache_line_pair_bytes) peer_flags {
  static constexpr std::size_t flag_payload_bytes = 56;

  struct alignas(cache_line_pair_bytes) line {
    typename Atomics::template atomic<std::uint64_t> word{0};
    std::byte payload[flag_payload_bytes] = {};
  };

  line lines[2];
  alignas(cache_line_pair_bytes) typename Atomics::template atomic<std::uint32_t> inside{0};
  typename Atomics::template atomic<std::uint32_t> outside{0};
  typename Atomics::template atomic<std::uint32_t> rounds{0};

  [[nodiscard]] line& flag_line_of(std::uint32_t operation_number) noexcept { return lines[operation_number % 2]; }
  [[nodiscard]] const line& flag_line_of(std::uint32_t operation_number) const noexcept {
    return lines[operation_number % 2];
  }

  /// The owner: its line, written before, is this turn's. What is released, and not published, waits for nothing.
  void publish(flag_word word) noexcept {
    flag_line_of(word.operation_number).word.store(word.bits(), std::memory_order_seq_cst);
  }
  void release(flag_word word) noexcept {
    flag_line_of(word.operation_number).word.store(word.bits(), std::memory_order_release);
  }
  /// Others: has it been?
  [[nodiscard]] bool arrived(std::uint32_t operation_number,
                             std::memory_order order = std::memory_order_acquire) const noexcept {
    return flag_word::of(flag_line_of(operation_number).word.load(order)).operation_number == operation_number;
  }
  /// Has it been, and does it call just this?
  [[nodiscard]] bool calls(flag_word word) const noexcept {
    return flag_line_of(word.operation_number).word.load(std::memory_order_acquire) == word.bits();
  }
  /// Has the turn at least been reached? True still when the owner is a turn ahead.
  [[nodiscard]] bool has_come(std::uint32_t operation_number) const noexcept {
    return arrived(operation_number) || arrived(operation_number + 1);
  }
  [[nodiscard]] std::uint32_t fingerprint_of(std::uint32_t operation_number) const noexcept {
    return flag_word::of(flag_line_of(operation_number).word.load(std::memory_order_relaxed)).print;
  }

  /// The owner, before it touches what belongs to peers; then it looks whether the world has stopped.
  void begin_access(std::uint32_t operation_number) noexcept {
    inside.store(operation_number, std::memory_order_seq_cst);
  }
  void end_access(std::uint32_t operation_number) noexcept {
    outside.store(operation_number, std::memory_order_release);
  }

  /// The owner, inside: it has come to this round of them all.
  void enter_round(std::uint32_t round) noexcept { rounds.store(round, std::memory_order_release); }
  [[nodiscard]] bool is_past(std::uint32_t round, std::memory_order order = std::memory_order_acquire) const noexcept {
    return static_cast<std::int32_t>(rounds.load(order) - round) >= 0;
  }

  /// True still when the owner has gone on to the next turn, and even given that up.
  [[nodiscard]] bool has_ended_access(std::uint32_t operation_number,
                                      std::memory_order order = std::memory_order_acquire) const noexcept {
    return static_cast<std::int32_t>(outside.load(order) - operation_number) >= 0;
  }
  /// Others, after the world has stopped: may it still touch what is ours?
  [[nodiscard]] bool is_accessing(std::uint32_t operation_number) const noexcept {
    return inside.load(std::memory_order_seq_cst) == operation_number && !has_ended_access(operation_number);
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
