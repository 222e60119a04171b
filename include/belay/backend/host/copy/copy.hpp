// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Copies by different instructions. Which one is fastest depends on the machine, on the size and on whether the bytes
// were just written by another core, so a caller chooses (see copy_choice.hpp). The vectors are compiled for their
// instruction set function by function and used where the processor has it: nothing needs -march=native.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/prefetch.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What moves the bytes: the C library, one string instruction, vector registers, or vector registers with stores
/// that go around the caches.
enum class copy_kind : std::uint8_t { library, rep_movsb, wide, streaming };

inline constexpr copy_kind copy_kinds[] = {copy_kind::library, copy_kind::rep_movsb, copy_kind::wide,
                                           copy_kind::streaming};

[[nodiscard]] constexpr const char* name(copy_kind how) noexcept {
  switch (how) {
    case copy_kind::library: return "library";
    case copy_kind::rep_movsb: return "rep_movsb";
    case copy_kind::wide: return "wide";
    case copy_kind::streaming: return "streaming";
  }
  return "unknown";
}

/// Whether a sanitizer watches: it does not see instructions written out by hand, so they are not used then.
[[nodiscard]] constexpr bool watched() noexcept {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer);
#else
  return false;
#endif
}

/// Bytes of the vector registers that `wide` and `streaming` use on this processor; 0: all kinds are the library's
/// copy.
[[nodiscard]] inline int vector_bytes() noexcept {
#if defined(__x86_64__)
  if (!watched()) return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 0;
#endif
  return 0;
}

/// Whether this is a processor of the maker on whose what follows was measured.
[[nodiscard]] inline bool is_intel() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}
/// Whether the string instruction takes a line over from a peer's cache without reading it first. Known of one maker's
/// processors; others' may be slow at small copies.
[[nodiscard]] inline bool strings_take_lines() noexcept { return is_intel(); }
/// Whether it pays to get a line back early for which a peer already looks: a tenth less of a small operation's time on
/// one maker's processors, a tenth more on another's, where a look takes a line away from its writer.
[[nodiscard]] inline bool early_fetches_pay() noexcept { return is_intel(); }

#if defined(__x86_64__)
// 64 and 32 bytes of anything, anywhere. (`auto` would drop the alignment of 1.)
typedef long long bytes_64 __attribute__((vector_size(64), aligned(1), may_alias));
typedef long long bytes_32 __attribute__((vector_size(32), aligned(1), may_alias));

// Whole blocks of four registers; `to` is aligned to a register where stores go around the caches. What is read `Ahead`
// bytes later is fetched: the processor itself does not look over the end of a page.
template <std::size_t Ahead>
__attribute__((target("avx512f"))) void copy_wide_64(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (std::size_t line = 0; line < 256 && Ahead > 0; line += 64) __builtin_prefetch(from + i + Ahead + line);
    const bytes_64* source = reinterpret_cast<const bytes_64*>(from + i);
    bytes_64* target = reinterpret_cast<bytes_64*>(to + i);
    const bytes_64 a = source[0], b = source[1], c = source[2], d = source[3];
    target[0] = a;
    target[1] = b;
    target[2] = c;
    target[3] = d;
  }
}
template <std::size_t Ahead>
__attribute__((target("avx2"))) void copy_wide_32(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t line = 0; line < 128 && Ahead > 0; line += 64) __builtin_prefetch(from + i + Ahead + line);
    const bytes_32* source = reinterpret_cast<const bytes_32*>(from + i);
    bytes_32* target = reinterpret_cast<bytes_32*>(to + i);
    const bytes_32 a = source[0], b = source[1], c = source[2], d = source[3];
    target[0] = a;
    target[1] = b;
    target[2] = c;
    target[3] = d;
  }
}
template <std::size_t Ahead>
__attribute__((target("avx512f"))) void copy_streaming_64(std::byte* to, const std::byte* from,
                                                          std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (std::size_t line = 0; line < 256 && Ahead > 0; line += 64) __builtin_prefetch(from + i + Ahead + line);
    const bytes_64* source = reinterpret_cast<const bytes_64*>(from + i);
    bytes_64* target = reinterpret_cast<bytes_64*>(to + i);
    const bytes_64 a = source[0], b = source[1], c = source[2], d = source[3];
    asm volatile("vmovntdq %1, %0" : "=m"(target[0]) : "v"(a));
    asm volatile("vmovntdq %1, %0" : "=m"(target[1]) : "v"(b));
    asm volatile("vmovntdq %1, %0" : "=m"(target[2]) : "v"(c));
    asm volatile("vmovntdq %1, %0" : "=m"(target[3]) : "v"(d));
  }
}
template <std::size_t Ahead>
__attribute__((target("avx2"))) void copy_streaming_32(std::byte* to, const std::byte* from,
                                                       std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; i += 128) {
    for (std::size_t line = 0; line < 128 && Ahead > 0; line += 64) __builtin_prefetch(from + i + Ahead + line);
    const bytes_32* source = reinterpret_cast<const bytes_32*>(from + i);
    bytes_32* target = reinterpret_cast<bytes_32*>(to + i);
    const bytes_32 a = source[0], b = source[1], c = source[2], d = source[3];
    asm volatile("vmovntdq %1, %0" : "=m"(target[0]) : "x"(a));
    asm volatile("vmovntdq %1, %0" : "=m"(target[1]) : "x"(b));
    asm volatile("vmovntdq %1, %0" : "=m"(target[2]) : "x"(c));
    asm volatile("vmovntdq %1, %0" : "=m"(target[3]) : "x"(d));
  }
}
#endif

/// From `least_fetched_ahead` on a copy's source may be in memory, and is fetched so many bytes ahead.
inline constexpr std::size_t least_fetched_ahead = 256 * 1024, fetched_ahead = 512;

/// Orders stores that went around the caches before whatever this thread stores afterwards: without it a flag may be
/// seen before the bytes it speaks of.
inline void order_streaming_stores() noexcept {
#if defined(__x86_64__)
  asm volatile("sfence" : : : "memory");
#endif
}

/// Copies `bytes` by vectors, `wide` or `streaming`; false, and nothing, where the processor lacks them or there are
/// few. See `copy_bytes`. (A call of its own, so that small copies stay short.)
[[gnu::noinline]] inline bool copy_by_vectors([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                                              [[maybe_unused]] std::size_t bytes, [[maybe_unused]] copy_kind how,
                                              [[maybe_unused]] std::size_t whole_bytes) noexcept {
#if defined(__x86_64__)
  const auto width = static_cast<std::size_t>(vector_bytes());
  if (width == 0 || bytes < 8 * width) return false;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  // Up to the first whole register of the target, then blocks of four, then what is left. (The width is a power of two;
  // a division takes longer than a small copy.)
  const std::size_t head = (0 - reinterpret_cast<std::uintptr_t>(target)) & (width - 1);
  if (head > 0) std::memcpy(target, source, head);
  const std::size_t body = (bytes - head) & ~(4 * width - 1);
  target += head;
  source += head;
  const auto copy_body = [&](auto ahead) {
    if (how == copy_kind::wide) {
      width == 64 ? copy_wide_64<ahead()>(target, source, body) : copy_wide_32<ahead()>(target, source, body);
    } else {
      width == 64 ? copy_streaming_64<ahead()>(target, source, body) : copy_streaming_32<ahead()>(target, source, body);
    }
  };
  if (whole_bytes >= least_fetched_ahead)
    copy_body(std::integral_constant<std::size_t, fetched_ahead>());
  else
    copy_body(std::integral_constant<std::size_t, 0>());
  if (head + body < bytes) std::memcpy(target + body, source + body, bytes - head - body);
  if (how == copy_kind::streaming) order_streaming_stores();
  return true;
#else
  return false;
#endif
}

/// Copies `bytes` by `how`, or as the library does where the processor lacks it; a piece of `whole_bytes` that are
/// copied after each other. The ranges do not overlap, but for `to` being `from`, where nothing is done. What was
/// streamed is ordered before later stores of this thread.
inline void copy_bytes(void* to, const void* from, std::size_t bytes, copy_kind how, std::size_t whole_bytes) noexcept {
  if (bytes == 0 || to == from) return;
#if defined(__x86_64__)
  if (how == copy_kind::rep_movsb && !watched()) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  const bool vectors = how == copy_kind::wide || how == copy_kind::streaming;
  if (!vectors || !copy_by_vectors(to, from, bytes, how, whole_bytes)) std::memcpy(to, from, bytes);
}

inline void copy_bytes(void* to, const void* from, std::size_t bytes, copy_kind how) noexcept {
  copy_bytes(to, from, bytes, how, bytes);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
