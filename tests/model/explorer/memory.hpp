// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the modelled threads know of each other. Every word keeps all values it ever had, in the order they were
// stored; a thread's view says which of them it must not overlook and which plain accesses of others happened before.
// A load may return any value that is not older than the view, so stale values are explored like schedules. Views
// travel from release to acquire, through read-modify-writes too (release sequences). Sequentially consistent accesses
// are ordered as they are executed, and do not overlook what an earlier one of them stored or read.
//
// This is C++20's memory model but for two things: a store becomes the last of its word when it is executed, and
// no load returns a value that is stored later (the machines and compilers at hand do neither to these programs).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace model {

inline constexpr int most_threads = 5;
inline constexpr int most_words = 64;

struct view {
  std::array<std::uint8_t, most_words> seen{};          // of each word, the index of a value
  std::array<std::uint16_t, 2 * most_threads> clock{};  // of each thread, plain accesses; then its streaming stores

  void join(const view& other) noexcept {
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] = std::max(seen[i], other.seen[i]);
    for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
  }
};

struct value {
  std::uint64_t bits = 0;
  std::uint64_t id = 0;  // tells all that led to it
  view known;            // what a reader that acquires it learns
};

[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ULL + b + 0x632be59bd9b4e019ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

[[nodiscard]] constexpr bool acquires(std::memory_order order) noexcept {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}
[[nodiscard]] constexpr bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

}  // namespace model
