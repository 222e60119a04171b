// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counts the calls that map, move or unmap memory, of all threads and libraries but two. The C library's heap is
// counted by heap_allocations, and a thread's stack comes with a thread; a BLAS maps a buffer when as many threads
// multiply at the same time as never before, whenever that is. Under a sanitizer, which maps for itself, nothing is
// counted. It replaces functions: for one source of a program.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tools/heap_allocations/heap_allocations.hpp"

namespace laws {

inline std::atomic<std::uint64_t> counted_mapping_calls{0};

[[nodiscard]] inline std::uint64_t mapping_calls() noexcept {
  return counted_mapping_calls.load(std::memory_order_relaxed);
}
[[nodiscard]] inline bool mapping_calls_are_counted() noexcept { return tools::heap_is_counted(); }

[[nodiscard]] inline bool is_in_blas(const void* code) noexcept {
  Dl_info found{};
  return ::dladdr(code, &found) != 0 && found.dli_fname != nullptr &&
         std::string_view(found.dli_fname).find("blas") != std::string_view::npos;
}

template <class... Arguments>
long counted_call(const void* caller, long number, Arguments... arguments) noexcept {
  if (!is_in_blas(caller)) counted_mapping_calls.fetch_add(1, std::memory_order_relaxed);
  return ::syscall(number, arguments...);
}

}  // namespace laws

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BELAY_TEST_MAPPING_SANITIZED 1
#endif
#endif
#else
#define BELAY_TEST_MAPPING_SANITIZED 1
#endif

#ifndef BELAY_TEST_MAPPING_SANITIZED
extern "C" {
void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  return reinterpret_cast<void*>(
      laws::counted_call(__builtin_return_address(0), SYS_mmap, at, bytes, protection, flags, file, offset));
}
void* mmap64(void* at, std::size_t bytes, int protection, int flags, int file, off64_t offset) noexcept {
  return reinterpret_cast<void*>(
      laws::counted_call(__builtin_return_address(0), SYS_mmap, at, bytes, protection, flags, file, offset));
}
int munmap(void* at, std::size_t bytes) noexcept {
  return static_cast<int>(laws::counted_call(__builtin_return_address(0), SYS_munmap, at, bytes));
}
void* mremap(void* at, std::size_t bytes, std::size_t wanted, int flags, ...) noexcept {
  std::va_list more;
  va_start(more, flags);
  void* const to = (flags & MREMAP_FIXED) != 0 ? va_arg(more, void*) : nullptr;
  va_end(more);
  return reinterpret_cast<void*>(
      laws::counted_call(__builtin_return_address(0), SYS_mremap, at, bytes, wanted, flags, to));
}
int brk(void* end) noexcept {
  return laws::counted_call(__builtin_return_address(0), SYS_brk, end) == reinterpret_cast<long>(end) ? 0 : -1;
}
}
#endif
