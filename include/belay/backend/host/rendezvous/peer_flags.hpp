// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flags of one rank of a group: written by their owner alone, read by all. Operations are numbered from 1. For each
// a rank publishes a flag line: one word that holds the operation's number and its fingerprint, and 56 bytes of payload
// beside it, so that one cache line carries a small operation whole. A rank has two lines and uses them in turn. It
// publishes operation n + 2 only after it saw all lines of operation n + 1, and a rank publishes that one only after it
// has read all lines of operation n: no line is overwritten that may still be read.
//
// Where peers read and write each other's buffers, a rank begins an access before it touches any and ends it
// afterwards. A rank that gives up waits for peers with a begun access; a rank that finds the world aborted begins
// none. Both looks are sequentially consistent, so that at least one of the two sees the other.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The word of a flag line: the operation's number in the upper half, its fingerprint in the lower.
struct flag_word {
  std::uint32_t operation_number = 0;
  std::uint32_t print = 0;

  [[nodiscard]] static constexpr flag_word of(std::uint64_t bits) noexcept {
    return {static_cast<std::uint32_t>(bits >> 32), static_cast<std::uint32_t>(bits)};
  }
  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return std::uint64_t{operation_number} << 32 | print; }
};

/// Copies a payload of fewer than 64 bytes without a call: by two pieces of one size that may overlap.
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

/// The distance in bytes between words that different ranks write: processors fetch lines in pairs.
inline constexpr std::size_t cache_line_pair_bytes = 128;

/// The model checker instantiates it with its own atomics.
template <atomics_policy Atomics = std_atomics>
struct alignas(cache_line_pair_bytes) peer_flags {
  static constexpr std::size_t flag_payload_bytes = 56;

  struct alignas(cache_line_pair_bytes) line {
    typename Atomics::template atomic<std::uint64_t> word{0};
    std::byte payload[flag_payload_bytes] = {};
  };

  line lines[2];
  alignas(cache_line_pair_bytes) typename Atomics::template atomic<std::uint32_t> access_begun{0};
  typename Atomics::template atomic<std::uint32_t> access_ended{0};
  typename Atomics::template atomic<std::uint32_t> round{0};

  [[nodiscard]] line& flag_line_of(std::uint32_t operation_number) noexcept { return lines[operation_number % 2]; }
  [[nodiscard]] const line& flag_line_of(std::uint32_t operation_number) const noexcept {
    return lines[operation_number % 2];
  }

  /// The owner: the payload, written before, belongs to this operation. `publish` stores with seq_cst, so that the
  /// check for sleepers cannot move before it. `release` is cheaper; its caller notifies with `notify_after_release`,
  /// whose read-modify-write gives the same order.
  void publish(flag_word word) noexcept {
    flag_line_of(word.operation_number).word.store(word.bits(), std::memory_order_seq_cst);
  }
  void release(flag_word word) noexcept {
    flag_line_of(word.operation_number).word.store(word.bits(), std::memory_order_release);
  }
  /// Peers: the operation's line has been published, whatever it calls.
  [[nodiscard]] bool arrived(std::uint32_t operation_number,
                             std::memory_order order = std::memory_order_acquire) const noexcept {
    return flag_word::of(flag_line_of(operation_number).word.load(order)).operation_number == operation_number;
  }
  /// Peers: it has been published and calls exactly this.
  [[nodiscard]] bool calls(flag_word word) const noexcept {
    return flag_line_of(word.operation_number).word.load(std::memory_order_acquire) == word.bits();
  }
  /// Peers: the owner has reached the operation. Still true when it is one operation ahead.
  [[nodiscard]] bool has_reached(std::uint32_t operation_number) const noexcept {
    return arrived(operation_number) || arrived(operation_number + 1);
  }
  [[nodiscard]] std::uint32_t fingerprint_of(std::uint32_t operation_number) const noexcept {
    return flag_word::of(flag_line_of(operation_number).word.load(std::memory_order_relaxed)).print;
  }

  /// The owner, before it touches peers' buffers; it then looks whether the world has been aborted.
  void begin_access(std::uint32_t operation_number) noexcept {
    access_begun.store(operation_number, std::memory_order_seq_cst);
  }
  void end_access(std::uint32_t operation_number) noexcept {
    access_ended.store(operation_number, std::memory_order_release);
  }

  /// The owner, within its access: it has reached this round, counted over all operations.
  void enter_round(std::uint32_t number) noexcept { round.store(number, std::memory_order_release); }
  [[nodiscard]] bool has_entered_round(std::uint32_t number,
                                       std::memory_order order = std::memory_order_acquire) const noexcept {
    return static_cast<std::int32_t>(round.load(order) - number) >= 0;
  }

  /// Still true when the owner has gone on to the next operation, and even when it has given that one up.
  [[nodiscard]] bool has_ended_access(std::uint32_t operation_number,
                                      std::memory_order order = std::memory_order_acquire) const noexcept {
    return static_cast<std::int32_t>(access_ended.load(order) - operation_number) >= 0;
  }
  /// Peers, after the world has been aborted: the owner may still touch their buffers.
  [[nodiscard]] bool is_accessing(std::uint32_t operation_number) const noexcept {
    return access_begun.load(std::memory_order_seq_cst) == operation_number && !has_ended_access(operation_number);
  }
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
