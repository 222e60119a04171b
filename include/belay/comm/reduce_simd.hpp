// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The reduction of two ranks' float or double arrays by vector registers, straight from the sources into one or two
// destinations: without a block in between, and with stores that may bypass the caches. The bits are those of
// `reduce_elements`, which does what has no vector form here.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "belay/comm/reduction.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/copy.hpp"
#include "belay/core/finite.hpp"

namespace belay::inline BELAY_ABI {

// The arithmetic of a reduction over several ranks' memory, on every backend. It works in blocks that stay in the
// first-level cache: every source is read once and every destination written once. Since the block is no rank's buffer,
// sources and destinations may be the same memory at the same index.

/// A buffer of this many bytes or more is not in a peer's cache as a whole.
inline constexpr std::size_t least_beyond_caches = 2 * 1024 * 1024;

/// Copies elements; zero of them may come from nowhere.
template <class T>
void copy_elements(T* to, const T* from, std::size_t count) noexcept {
  if (count > 0 && to != from) std::memcpy(to, from, count * sizeof(T));
}

/// Prefetches `bytes` at `first` of the destinations that are also sources, for writing, in a reduction of `all` bytes.
inline void prefetch_reduced(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                             std::size_t first, std::size_t bytes, std::size_t all) noexcept {
  if (bytes == 0 || all >= least_beyond_caches) return;
  // Of several destinations each belongs to the rank of the source beside it; a single one may be any rank's.
  for (std::size_t d = 0; d < destinations.size(); ++d) {
    const std::byte* const place = destinations[d];
    const bool is_source = destinations.size() > 1 ? d < sources.size() && sources[d] == place
                                                   : std::find(sources.begin(), sources.end(), place) != sources.end();
    if (is_source) prefetch_for_write(place + first, bytes);
  }
}

/// For each element i < count: ((s0[i] + s1[i]) + s2[i]) + ..., finished and rounded to T once, is stored at index i of
/// every destination. The arrays are of T.
template <class Op, class T>
void reduce_elements(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                     std::size_t count) noexcept {
  using accumulator = accumulator_of<T>;
  constexpr std::size_t block = 4096 / sizeof(accumulator);
  alignas(64) accumulator total[block];
  [[maybe_unused]] alignas(64) T rounded[block];
  const auto source = [=](std::size_t q) { return reinterpret_cast<const T*>(sources[q]); };

  const auto one_block = [&](std::size_t first, std::size_t length) {
    const T* x = source(0) + first;
    for (std::size_t i = 0; i < length; ++i) total[i] = static_cast<accumulator>(x[i]);
    for (std::size_t q = 1; q < sources.size(); ++q) {
      const T* y = source(q) + first;
      for (std::size_t i = 0; i < length; ++i) total[i] = Op::apply(total[i], static_cast<accumulator>(y[i]));
    }
    if constexpr (finishing<Op>) {
      const int ranks = static_cast<int>(sources.size());
      for (std::size_t i = 0; i < length; ++i) total[i] = Op::finish(total[i], ranks);
    }
    const T* result;
    if constexpr (std::is_same_v<accumulator, T>) {
      result = total;
    } else {
      for (std::size_t i = 0; i < length; ++i) rounded[i] = static_cast<T>(total[i]);
      result = rounded;
    }
    for (std::byte* const to : destinations) std::memcpy(to + first * sizeof(T), result, length * sizeof(T));
  };

  std::size_t first = 0;
  prefetch_reduced(sources, destinations, 0, lesser_of(block, count) * sizeof(T), count * sizeof(T));
  for (; first + block <= count; first += block) {
    const std::size_t next = first + block;
    prefetch_reduced(sources, destinations, next * sizeof(T), lesser_of(block, count - next) * sizeof(T),
                     count * sizeof(T));
    one_block(first, block);  // a constant trip count
  }
  if (first < count) one_block(first, count - first);
}

/// Bytes at `from_a` go to `to_b`, and bytes at `from_b` to `to_a`. Of each block both are read before either is
/// written, so `to_a` may be `from_a` and `to_b` may be `from_b`.
inline void cross_bytes(const std::byte* from_a, std::byte* to_b, const std::byte* from_b, std::byte* to_a,
                        std::size_t bytes) noexcept {
  alignas(64) std::byte held[4096];
  const auto fetch_block = [=](std::size_t first) {
    if (first >= bytes || bytes >= least_beyond_caches) return;
    const std::size_t length = lesser_of(sizeof held, bytes - first);
    if (to_a == from_a) prefetch_for_write(to_a + first, length);
    if (to_b == from_b) prefetch_for_write(to_b + first, length);
  };
  fetch_block(0);
  for (std::size_t first = 0; first < bytes; first += sizeof held) {
    const std::size_t length = lesser_of(sizeof held, bytes - first);
    fetch_block(first + sizeof held);
    std::memcpy(held, from_a + first, length);
    std::memcpy(to_a + first, from_b + first, length);
    std::memcpy(to_b + first, held, length);
  }
}

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

/// The data of all ranks in a small operation, or in the eager buffers of a larger one. Peers' data lies `stride` bytes
/// apart; this rank's is read from its caller's buffer, because a peer may just have taken the published copy into its
/// own cache.
struct peer_payloads {
  const std::byte* first = nullptr;
  std::size_t stride = 0;
  int me = 0;
  const std::byte* own = nullptr;

  [[nodiscard]] const std::byte* operator()(int who) const noexcept {
    return who == me ? own : first + static_cast<std::size_t>(who) * stride;
  }
};

/// Both add in rank order and round once, with equal bits.
/// Two functions on bytes are compiled of a reduction of elements of one type, where a call names both: those that a
/// call carries to whatever backend adds on the host. A type that no call reduces costs nothing.
struct reduction_arithmetic {
  /// Reduces `count` elements of all sources into every destination. `by` tells how two ranks' floats are added by
  /// vectors; `own` is the destination of two that is this rank's.
  void (*arrays)(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations, std::size_t count,
                 memory_access by, int own) noexcept;
  /// Reduces the elements [first, first + count) of `ranks` payloads, few enough for a flag line, into `out`.
  void (*few)(const peer_payloads& from, int ranks, std::size_t first, std::byte* out, std::size_t count) noexcept;
  std::size_t element_bytes;
};

template <class Op, class T>
void reduce_arrays(std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                   std::size_t count, memory_access by, int own) noexcept {
  if (sources.size() != 2 || destinations.size() > 2) return reduce_elements<Op, T>(sources, destinations, count);
  const auto source = [&](std::size_t q) { return reinterpret_cast<const T*>(sources[q]); };
  T* const also_to = destinations.size() == 2 ? reinterpret_cast<T*>(destinations[1]) : nullptr;
  reduce_two<Op, T>(reinterpret_cast<T*>(destinations[0]), also_to, source(0), source(1), count, by, own);
}

template <class Op, class T>
void reduce_few(const peer_payloads& from, int ranks, std::size_t first, std::byte* out, std::size_t count) noexcept {
  using accumulator = accumulator_of<T>;
  const auto source = [&](int q) { return reinterpret_cast<const T*>(from(q)) + first; };
  T* const to = reinterpret_cast<T*>(out);
  for (std::size_t i = 0; i < count; ++i) {
    auto total = static_cast<accumulator>(source(0)[i]);
    for (int q = 1; q < ranks; ++q) total = Op::apply(total, static_cast<accumulator>(source(q)[i]));
    if constexpr (finishing<Op>) total = Op::finish(total, ranks);
    to[i] = static_cast<T>(total);
  }
}

template <class Op, class T>
inline constexpr reduction_arithmetic arithmetic_of{reduce_arrays<Op, T>, reduce_few<Op, T>, sizeof(T)};

}  // namespace belay::inline BELAY_ABI
