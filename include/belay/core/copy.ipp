// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Copies by vector registers.
#pragma once

#include <cstdint>

#include "belay/core/copy.hpp"

namespace belay::inline BELAY_ABI {

#if defined(__x86_64__)
// 64 and 32 bytes of anything, anywhere. (`auto` would drop the alignment of 1.)
typedef long long bytes_64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef long long bytes_32 __attribute__((vector_size(32), aligned(1), may_alias));

// Whole blocks of four registers; `to` is aligned to a register for non-temporal stores. The source is prefetched
// `ahead` bytes, which the processor itself does not do across the end of a page.
__attribute__((target("avx512f"))) inline void copy_64(std::byte* to, const std::byte* from, std::size_t bytes,
                                                       memory_access how, std::size_t ahead) noexcept {
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (std::size_t line = 0; line < 256 && ahead > 0; line += 64) __builtin_prefetch(from + i + ahead + line);
    const bytes_64* const source = reinterpret_cast<const bytes_64*>(from + i);
    bytes_64* const target = reinterpret_cast<bytes_64*>(to + i);
    const bytes_64 a = source[0], b = source[1], c = source[2], d = source[3];
    if (how == memory_access::temporal) {
      target[0] = a;
      target[1] = b;
      target[2] = c;
      target[3] = d;
    } else {
      asm volatile("vmovntdq %1, %0" : "=m"(target[0]) : "v"(a));
      asm volatile("vmovntdq %1, %0" : "=m"(target[1]) : "v"(b));
      asm volatile("vmovntdq %1, %0" : "=m"(target[2]) : "v"(c));
      asm volatile("vmovntdq %1, %0" : "=m"(target[3]) : "v"(d));
    }
  }
}
__attribute__((target("avx2"))) inline void copy_32(std::byte* to, const std::byte* from, std::size_t bytes,
                                                    memory_access how, std::size_t ahead) noexcept {
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t line = 0; line < 128 && ahead > 0; line += 64) __builtin_prefetch(from + i + ahead + line);
    const bytes_32* const source = reinterpret_cast<const bytes_32*>(from + i);
    bytes_32* const target = reinterpret_cast<bytes_32*>(to + i);
    const bytes_32 a = source[0], b = source[1], c = source[2], d = source[3];
    if (how == memory_access::temporal) {
      target[0] = a;
      target[1] = b;
      target[2] = c;
      target[3] = d;
    } else {
      asm volatile("vmovntdq %1, %0" : "=m"(target[0]) : "x"(a));
      asm volatile("vmovntdq %1, %0" : "=m"(target[1]) : "x"(b));
      asm volatile("vmovntdq %1, %0" : "=m"(target[2]) : "x"(c));
      asm volatile("vmovntdq %1, %0" : "=m"(target[3]) : "x"(d));
    }
  }
}
#endif

BELAY_DECL bool copy_by_vectors([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                                [[maybe_unused]] std::size_t bytes, [[maybe_unused]] memory_access how,
                                [[maybe_unused]] std::size_t whole_bytes) noexcept {
#if defined(__x86_64__)
  const auto width = static_cast<std::size_t>(vector_bytes());
  if (width == 0 || bytes < 8 * width) return false;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  // Up to the first whole register of the target, then blocks of four, then the rest. (The width is a power of two.)
  const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(target)) & (width - 1);
  if (head > 0) std::memcpy(target, source, head);
  const std::size_t body = (bytes - head) & ~(4 * width - 1);
  target += head;
  source += head;
  const std::size_t ahead = whole_bytes >= least_prefetched ? prefetch_distance : 0;
  width == 64 ? copy_64(target, source, body, how, ahead) : copy_32(target, source, body, how, ahead);
  if (head + body < bytes) std::memcpy(target + body, source + body, bytes - head - body);
  if (how == memory_access::non_temporal) order_non_temporal_stores();
  return true;
#else
  return false;
#endif
}

}  // namespace belay::inline BELAY_ABI
