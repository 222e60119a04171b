// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Copies by different instructions. Which is fastest depends on the machine, on the size and on whether another core
// has just written the bytes, so the caller chooses (see calibration.hpp). Vector code is compiled for its instruction
// set function by function and runs where the processor has it: no program needs -march=native.
// IWYU pragma: private, include "belay/core.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

// Hints that bring cache lines to the calling core before they are written. A hint changes no result, and a processor
// that does not know it ignores it.

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

// How a copy or a reduction reads and writes memory. Every access moves the same bits.

/// `automatic`: by the calibration of this machine. `temporal`: vector registers, through the caches. `prefetch`: the
/// source is prefetched to be read. `prefetch_exclusive`: a source that is also a destination is prefetched to be
/// written. `non_temporal`: stores bypass the caches. `non_temporal_remote`: stores into peers' buffers do.
/// `rep_movsb`: one string instruction. `libc`: the C library's memcpy.
enum class memory_access : std::uint8_t {
  automatic,
  temporal,
  prefetch,
  prefetch_exclusive,
  non_temporal,
  non_temporal_remote,
  rep_movsb,
  libc
};

[[nodiscard]] constexpr const char* name(memory_access how) noexcept {
  constexpr const char* names[] = {"automatic",           "temporal",  "prefetch", "prefetch_exclusive", "non_temporal",
                                   "non_temporal_remote", "rep_movsb", "libc"};
  return names[static_cast<std::size_t>(how)];
}

/// Those that differ for a plain copy.
inline constexpr memory_access copy_accesses[] = {memory_access::libc, memory_access::rep_movsb,
                                                  memory_access::temporal, memory_access::non_temporal};

/// The access of a plain copy that `how`, which is not automatic, stands for: one of `copy_accesses`, as prefetching is
/// the copy's own business.
[[nodiscard]] constexpr memory_access as_copy(memory_access how) noexcept {
  switch (how) {
    case memory_access::libc:
    case memory_access::rep_movsb:
    case memory_access::non_temporal: return how;
    default: return memory_access::temporal;
  }
}

/// Whether the program is built with a sanitizer, which does not see hand-written instructions: copies are libc's then.
[[nodiscard]] constexpr bool is_sanitized() noexcept {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#elif defined(__has_feature)
  return __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer);
#else
  return false;
#endif
}

/// Bytes of the vector registers that `temporal` and `non_temporal` copies use on this processor; 0: all copies are
/// libc's.
[[nodiscard]] inline int vector_bytes() noexcept {
#if defined(__x86_64__)
  if (!is_sanitized()) return __builtin_cpu_supports("avx512f") ? 64 : __builtin_cpu_supports("avx2") ? 32 : 0;
#endif
  return 0;
}

/// Whether the vendor is Intel: the next two were measured on its processors (docs/explanation/tuning.md).
[[nodiscard]] inline bool is_intel() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}
/// Whether `rep movsb` takes a line from a peer's cache without reading it first.
[[nodiscard]] inline bool strings_take_lines() noexcept { return is_intel(); }
/// Whether it pays to prefetch a line for writing while a peer polls it.
[[nodiscard]] inline bool early_fetches_pay() noexcept { return is_intel(); }

/// A source of this many bytes or more may be in memory: it is prefetched `prefetch_distance` bytes ahead.
inline constexpr std::size_t least_prefetched = 256 * 1024, prefetch_distance = 512;

/// Orders non-temporal stores before whatever this thread stores afterwards: a flag could otherwise be seen before the
/// bytes that it announces.
inline void order_non_temporal_stores() noexcept {
#if defined(__x86_64__)
  asm volatile("sfence" : : : "memory");
#endif
}

/// Copies `bytes` by vector registers, `temporal` or `non_temporal`. False, and nothing is copied, where the processor
/// has none or there are few bytes.
BELAY_DECL bool copy_by_vectors(void* to, const void* from, std::size_t bytes, memory_access how,
                                std::size_t whole_bytes) noexcept;

/// Copies `bytes` by `how`, one of `copy_accesses`, or by libc where the processor lacks it. `whole_bytes` is what the
/// caller copies piece by piece. The ranges do not overlap; where `to` is `from` nothing is done. Non-temporal stores
/// are ordered before later stores of this thread.
inline void copy_bytes(void* to, const void* from, std::size_t bytes, memory_access how,
                       std::size_t whole_bytes) noexcept {
  if (bytes == 0 || to == from) return;
#if defined(__x86_64__)
  if (how == memory_access::rep_movsb && !is_sanitized()) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  const bool vectors = how == memory_access::temporal || how == memory_access::non_temporal;
  if (!vectors || !copy_by_vectors(to, from, bytes, how, whole_bytes)) std::memcpy(to, from, bytes);
}
inline void copy_bytes(void* to, const void* from, std::size_t bytes, memory_access how) noexcept {
  copy_bytes(to, from, bytes, how, bytes);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/copy.ipp"  // IWYU pragma: export
#endif
