// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Copies whose target is not read soon: stored around the caches, a row takes no line of what others use, and the old
// content of its memory is not read.
//
//   belay::kernel::copy_non_temporal(to, from, bytes);
//   belay::kernel::finish_non_temporal();  // before a peer is told that the rows are there
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI::kernel {

#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
// Without the header of the intrinsics, which is large.
using sixteen_bytes [[gnu::vector_size(16)]] = long long;

inline void store_non_temporal(sixteen_bytes* to, sixteen_bytes value) noexcept {
#if defined(__clang__)
  __builtin_nontemporal_store(value, to);
#else
  __builtin_ia32_movntdq(to, value);
#endif
}
#endif

/// Copies `bytes` of memory that do not overlap. Around the caches where `to` and `bytes` are multiples of 16 on a
/// processor that can; else as memcpy.
BELAY_HD inline void copy_non_temporal(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
  if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0 && bytes % 16 == 0) {
    constexpr std::size_t line = 64;
    auto* target = static_cast<char*>(to);
    const auto* source = static_cast<const char*>(from);
    const auto store = [&](std::size_t at, std::size_t count) {
      sixteen_bytes values[4];
      std::memcpy(values, source + at, count);
      for (std::size_t i = 0; i < count / 16; ++i)
        store_non_temporal(reinterpret_cast<sixteen_bytes*>(target + at) + i, values[i]);
    };
    std::size_t at = 0;
    for (; at + line <= bytes; at += line) store(at, line);
    for (; at < bytes; at += 16) store(at, 16);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

/// Orders the bytes that `copy_non_temporal` has stored before all later stores of the calling thread.
BELAY_HD inline void finish_non_temporal() noexcept {
#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
  __builtin_ia32_sfence();
#endif
}

}  // namespace belay::inline BELAY_ABI::kernel
