// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The reduction of two ranks' float or double arrays by vector registers, straight from the sources into one or two
// destinations: without a block in between, and with stores that may bypass the caches. The bits are those of
// `reduce_elements`, which does what has no vector form here.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "belay/comm/reduce_blocks.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/memory_access.hpp"
#include "belay/core/prefetch.hpp"

namespace belay::inline BELAY_ABI {

/// How far ahead a source that is also a destination is prefetched, in bytes.
inline constexpr std::size_t exclusive_prefetch_distance = 256;

/// How a reduction of two ranks touches each of its arrays: destinations temporal or non_temporal, sources temporal (no
/// prefetch), prefetch or prefetch_exclusive.
struct reduction_plan {
  memory_access to = memory_access::temporal, also_to = memory_access::temporal;
  memory_access first = memory_access::temporal, second = memory_access::temporal;

  [[nodiscard]] bool non_temporal() const noexcept {
    return to == memory_access::non_temporal || also_to == memory_access::non_temporal;
  }
};

#if defined(__x86_64__)
// A register of so many bytes, at the alignment of one element. (As an argument of a template it would lose that.)
template <class T, std::size_t Bytes>
struct vector_lanes {
  using bits_type = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  typedef T vector __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
  typedef bits_type bits __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
  static constexpr auto infinity = static_cast<bits_type>(infinity_bits<T>);
  static constexpr bits_type magnitude = largest_value<bits_type>;
};

/// Prefetches a source behind the `bytes` at `from`.
inline void prefetch_ahead(const void* from, std::size_t bytes, memory_access how) noexcept {
  const auto* const first = static_cast<const std::byte*>(from);
  if (how == memory_access::prefetch_exclusive) prefetch_for_write(first + exclusive_prefetch_distance, bytes);
  if (how != memory_access::prefetch) return;
  for (std::size_t line = 0; line < bytes; line += 64) __builtin_prefetch(first + prefetch_distance + line);
}

// What is inlined takes the instructions of the function that it is inlined into. (Lambdas with a target of their own
// would lose it where nvcc hands them to the host's compiler.)
template <class Op, class T, class Lanes>
[[gnu::always_inline]] inline void reduce_register(typename Lanes::vector& r, const T* first,
                                                   const T* second) noexcept {
  using vector = typename Lanes::vector;
  const vector a = *reinterpret_cast<const vector*>(first);
  const vector b = *reinterpret_cast<const vector*>(second);
  if constexpr (Op::code == reduction::sum)
    r = a + b;
  else if constexpr (Op::code == reduction::product)
    r = a * b;
  else if constexpr (Op::code == reduction::average)
    r = (a + b) / T{2};
  else {
    using bits = typename Lanes::bits;
    const bits in_a = *reinterpret_cast<const bits*>(first) & Lanes::magnitude;
    const bits in_b = *reinterpret_cast<const bits*>(second) & Lanes::magnitude;
    if constexpr (Op::code == reduction::minimum)
      r = ((in_a > Lanes::infinity) | ((a < b) & (in_b <= Lanes::infinity))) ? a : b;
    else
      r = ((in_a > Lanes::infinity) | ((a > b) & (in_b <= Lanes::infinity))) ? a : b;
  }
}
// `count` is a multiple of the lanes; a non-temporal destination is aligned to a register. The two functions differ in
// the register alone, which a template cannot be told.
template <class T>
__attribute__((target("avx512f"), always_inline)) inline void store_64(T* place,
                                                                       const typename vector_lanes<T, 64>::vector& r,
                                                                       memory_access how) noexcept {
  auto* const there = reinterpret_cast<typename vector_lanes<T, 64>::vector*>(place);
  if (how == memory_access::non_temporal)
    asm volatile("vmovntps %1, %0" : "=m"(*there) : "v"(r));
  else
    *there = r;
}
template <class Op, class T>
__attribute__((target("avx512f"))) void reduce_two_64(T* to, T* also_to, const T* first, const T* second,
                                                      std::size_t count, reduction_plan plan) noexcept {
  using of = vector_lanes<T, 64>;
  constexpr std::size_t each = 64 / sizeof(T);
  std::size_t i = 0;
  // A block is read before any of it is stored: reads from a peer and stores into it do not wait for each other.
  for (; i + 4 * each <= count; i += 4 * each) {
    prefetch_ahead(first + i, 4 * 64, plan.first);
    prefetch_ahead(second + i, 4 * 64, plan.second);
    typename of::vector w, x, y, z;
    reduce_register<Op, T, of>(w, first + i, second + i);
    reduce_register<Op, T, of>(x, first + i + each, second + i + each);
    reduce_register<Op, T, of>(y, first + i + 2 * each, second + i + 2 * each);
    reduce_register<Op, T, of>(z, first + i + 3 * each, second + i + 3 * each);
    store_64(to + i, w, plan.to);
    store_64(to + i + each, x, plan.to);
    store_64(to + i + 2 * each, y, plan.to);
    store_64(to + i + 3 * each, z, plan.to);
    if (also_to == to) continue;
    store_64(also_to + i, w, plan.also_to);
    store_64(also_to + i + each, x, plan.also_to);
    store_64(also_to + i + 2 * each, y, plan.also_to);
    store_64(also_to + i + 3 * each, z, plan.also_to);
  }
  for (; i < count; i += each) {
    typename of::vector result;
    reduce_register<Op, T, of>(result, first + i, second + i);
    store_64(to + i, result, plan.to);
    if (also_to != to) store_64(also_to + i, result, plan.also_to);
  }
}
template <class T>
__attribute__((target("avx2"), always_inline)) inline void store_32(T* place,
                                                                    const typename vector_lanes<T, 32>::vector& r,
                                                                    memory_access how) noexcept {
  auto* const there = reinterpret_cast<typename vector_lanes<T, 32>::vector*>(place);
  if (how == memory_access::non_temporal)
    asm volatile("vmovntps %1, %0" : "=m"(*there) : "x"(r));
  else
    *there = r;
}
template <class Op, class T>
__attribute__((target("avx2"))) void reduce_two_32(T* to, T* also_to, const T* first, const T* second,
                                                   std::size_t count, reduction_plan plan) noexcept {
  using of = vector_lanes<T, 32>;
  constexpr std::size_t each = 32 / sizeof(T);
  std::size_t i = 0;
  // A block is read before any of it is stored: reads from a peer and stores into it do not wait for each other.
  for (; i + 4 * each <= count; i += 4 * each) {
    prefetch_ahead(first + i, 4 * 32, plan.first);
    prefetch_ahead(second + i, 4 * 32, plan.second);
    typename of::vector w, x, y, z;
    reduce_register<Op, T, of>(w, first + i, second + i);
    reduce_register<Op, T, of>(x, first + i + each, second + i + each);
    reduce_register<Op, T, of>(y, first + i + 2 * each, second + i + 2 * each);
    reduce_register<Op, T, of>(z, first + i + 3 * each, second + i + 3 * each);
    store_32(to + i, w, plan.to);
    store_32(to + i + each, x, plan.to);
    store_32(to + i + 2 * each, y, plan.to);
    store_32(to + i + 3 * each, z, plan.to);
    if (also_to == to) continue;
    store_32(also_to + i, w, plan.also_to);
    store_32(also_to + i + each, x, plan.also_to);
    store_32(also_to + i + 2 * each, y, plan.also_to);
    store_32(also_to + i + 3 * each, z, plan.also_to);
  }
  for (; i < count; i += each) {
    typename of::vector result;
    reduce_register<Op, T, of>(result, first + i, second + i);
    store_32(to + i, result, plan.to);
    if (also_to != to) store_32(also_to + i, result, plan.also_to);
  }
}
#endif

/// How `reduce_two` goes about `count` elements; `own` is the destination that is this rank's, 0 or 1.
template <class T>
[[nodiscard]] reduction_plan plan_reduction(const T* to, const T* also_to, const T* first, const T* second,
                                            std::size_t count, memory_access by, int own) noexcept {
  const auto is_destination = [=](const T* source) { return source == to || source == also_to; };
  const bool beyond_caches = count * sizeof(T) >= least_beyond_caches;
  const auto read = [=](const T* source) {
    switch (by) {
      case memory_access::temporal: return memory_access::temporal;
      case memory_access::prefetch:
      case memory_access::non_temporal: return memory_access::prefetch;
      default: break;
    }
    if (by == memory_access::prefetch_exclusive && is_destination(source)) return memory_access::prefetch_exclusive;
    // Two sources and two destinations are more streams than a copy: within the caches a prefetch slows them down.
    if (beyond_caches) return memory_access::prefetch;
    // Of two destinations one is a peer's. A single one is mostly this rank's, and its lines are already here.
    return also_to != nullptr && is_destination(source) ? memory_access::prefetch_exclusive : memory_access::temporal;
  };
  const auto stored = [=](int destination) {
    const bool bypasses =
        by == memory_access::non_temporal || (by == memory_access::non_temporal_remote && destination != own);
    return bypasses ? memory_access::non_temporal : memory_access::temporal;
  };
  return {stored(0), stored(1), read(first), read(second)};
}

/// `to[i]` and, unless it is null, `also_to[i]` become the reduction of `first[i]` and `second[i]`, in this order, as
/// of two ranks; `own` is the destination that is this rank's, 0 or 1. Destinations may be sources at the same index,
/// not shifted. Non-temporal stores are ordered before later stores of this thread.
template <class Op, class T>
void reduce_two(T* to, T* also_to, const T* first, const T* second, std::size_t count,
                memory_access by = memory_access::automatic, int own = 0) noexcept {
  const auto any = [=](std::size_t begin, std::size_t length) {
    if (length == 0) return;
    const auto at = [=](const T* array) { return reinterpret_cast<const std::byte*>(array + begin); };
    const auto to_at = [=](T* array) { return reinterpret_cast<std::byte*>(array + begin); };
    const std::byte* const sources[] = {at(first), at(second)};
    std::byte* const destinations[] = {to_at(to), also_to == nullptr ? nullptr : to_at(also_to)};
    reduce_elements<Op, T>(sources, std::span(destinations).first(also_to == nullptr ? 1 : 2), length);
  };
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const auto width = static_cast<std::size_t>(vector_bytes());
    if (width > 0) {
      // Up to the first whole register of the non-temporal destination; two that are aligned differently are temporal.
      // (The width is a power of two.)
      const auto misaligned = [=](const T* p) { return reinterpret_cast<std::uintptr_t>(p) & (width - 1); };
      T* const other = also_to == nullptr ? to : also_to;
      reduction_plan plan = plan_reduction<T>(to, also_to, first, second, count, by, own);
      const bool to_bypasses = plan.to == memory_access::non_temporal,
                 other_bypasses = plan.also_to == memory_access::non_temporal;
      T* const aligned = other_bypasses && !to_bypasses ? other : to;
      const std::size_t head =
          lesser_of(count, ((0 - reinterpret_cast<std::uintptr_t>(aligned)) & (width - 1)) / sizeof(T));
      const std::size_t body = (count - head) & ~(width / sizeof(T) - 1);
      if (misaligned(aligned) % sizeof(T) != 0 ||
          (to_bypasses && other_bypasses && misaligned(other) != misaligned(to))) {
        plan.to = plan.also_to = memory_access::temporal;
      }
      any(0, head);
      (width == 64 ? reduce_two_64<Op, T> : reduce_two_32<Op, T>)(to + head, other + head, first + head, second + head,
                                                                  body, plan);
      any(head + body, count - head - body);
      if (plan.non_temporal()) order_non_temporal_stores();
      return;
    }
  }
#endif
  any(0, count);
}

}  // namespace belay::inline BELAY_ABI
