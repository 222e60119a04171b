// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Hints that bring cache lines to the calling core before they are written. A hint changes no result, and a processor
// that does not know it ignores it.
//
//   belay::prefetch_for_write(to, bytes);
//   std::memcpy(to, from, bytes);  // a short copy, into lines that a peer has read
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Brings the cache line at `line` to this core for writing. Without it, a line in a peer's cache is requested twice:
/// once to be read and once to be written.
inline void prefetch_for_write(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" : : "r"(line));
#else
  __builtin_prefetch(line, 1);
#endif
}
/// Brings every cache line of the `bytes` bytes at `from` to this core for writing.
inline void prefetch_for_write(const void* from, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 64) prefetch_for_write(static_cast<const std::byte*>(from) + i);
}

}  // namespace belay::inline BELAY_ABI
