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

#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
#include <emmintrin.h>
#endif

namespace belay::inline BELAY_ABI::kernel {

/// Copies `bytes` of memory that do not overlap. Around the caches where `to` and `bytes` are multiples of 16 on a
/// processor that can; else as memcpy.
BELAY_HD inline void copy_non_temporal(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
  if (reinterpret_cast<std::uintptr_t>(to) % 16 == 0 && bytes % 16 == 0) {
    auto* target = static_cast<__m128i*>(to);
    const auto* source = static_cast<const __m128i*>(from);
    std::size_t i = 0;
    for (; i + 4 <= bytes / 16; i += 4) {  // a line at a time
      const __m128i a = _mm_loadu_si128(source + i), b = _mm_loadu_si128(source + i + 1);
      const __m128i c = _mm_loadu_si128(source + i + 2), d = _mm_loadu_si128(source + i + 3);
      _mm_stream_si128(target + i, a);
      _mm_stream_si128(target + i + 1, b);
      _mm_stream_si128(target + i + 2, c);
      _mm_stream_si128(target + i + 3, d);
    }
    for (; i < bytes / 16; ++i) _mm_stream_si128(target + i, _mm_loadu_si128(source + i));
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

/// What was copied so is ordered before all later stores of the calling thread.
BELAY_HD inline void finish_non_temporal() noexcept {
#if defined(__SSE2__) && !defined(__CUDA_ARCH__)
  _mm_sfence();
#endif
}

}  // namespace belay::inline BELAY_ABI::kernel
