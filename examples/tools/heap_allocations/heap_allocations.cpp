// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Replaces malloc and its relatives by functions that count and call those of the C library; `operator new` calls
// malloc. A sanitizer has a malloc of its own, which is not replaced: there the count stays 0.
#include "tools/heap_allocations/heap_allocations.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BELAY_HEAP_SANITIZED 1
#endif
#endif
#else
#define BELAY_HEAP_SANITIZED 1
#endif

namespace {
std::atomic<std::uint64_t> count{0};
}

namespace tools {
std::uint64_t heap_allocations() noexcept { return count.load(std::memory_order_relaxed); }

bool heap_is_counted() noexcept {
#ifdef BELAY_HEAP_SANITIZED
  return false;
#else
  return true;
#endif
}
}  // namespace tools

#ifndef BELAY_HEAP_SANITIZED
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
void* calloc(std::size_t items, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(items, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  count.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
  void* memory = memalign(alignment, bytes);
  if (memory == nullptr) return ENOMEM;
  *out = memory;
  return 0;
}
}
#endif
