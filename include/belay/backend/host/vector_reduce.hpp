// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The reduction of two ranks' float or double arrays by vector registers, straight from the sources into one or two
// destinations: no block in between, and stores that may go around the caches. The bits are those of
// `reduce_elements`; what has no vector form here goes there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/backend/host/arithmetic.hpp"
#include "belay/backend/host/copy.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether results are stored through the caches or around them.
enum class store_kind : std::uint8_t { cached, streaming };

/// From so many bytes of a source on it is fetched ahead. Two sources and two destinations are more streams than a copy:
/// what comes out of caches is slower for it.
inline constexpr std::size_t least_reduced_ahead = 2 * 1024 * 1024;

#if defined(__x86_64__)
template <class T>
struct lanes;
template <>
struct lanes<float> {
  typedef float of_64 __attribute__((vector_size(64), aligned(4), may_alias));
  typedef float of_32 __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct lanes<double> {
  typedef double of_64 __attribute__((vector_size(64), aligned(8), may_alias));
  typedef double of_32 __attribute__((vector_size(32), aligned(8), may_alias));
};

// (`auto` would drop the alignment of one element.)
// `count` is a multiple of the lanes; sources are fetched so many elements `ahead`; both destinations are aligned to a
// register where `how` is streaming. The two functions differ in the register only, which a template cannot be told.
template <class Op, class T>
__attribute__((target("avx512f"))) void reduce_two_64(T* to, T* also_to, const T* first, const T* second,
                                                      std::size_t count, store_kind how, std::size_t ahead) noexcept {
  using vector = typename lanes<T>::of_64;
  for (std::size_t i = 0; i < count; i += 64 / sizeof(T)) {
    if (ahead > 0) {
      __builtin_prefetch(first + i + ahead);
      __builtin_prefetch(second + i + ahead);
    }
    const vector a = *reinterpret_cast<const vector*>(first + i);
    const vector b = *reinterpret_cast<const vector*>(second + i);
    vector r;
    if constexpr (Op::code == reduction::sum) r = a + b;
    else if constexpr (Op::code == reduction::product) r = a * b;
    else if constexpr (Op::code == reduction::average) r = (a + b) / T{2};
    else if constexpr (Op::code == reduction::minimum) r = ((a < b) | (a != a)) ? a : b;
    else r = ((a > b) | (a != a)) ? a : b;
    vector& one = *reinterpret_cast<vector*>(to + i);
    vector& other = *reinterpret_cast<vector*>(also_to + i);
    if (how == store_kind::streaming) {
      asm volatile("vmovntps %1, %0" : "=m"(one) : "v"(r));
      if (also_to != to) asm volatile("vmovntps %1, %0" : "=m"(other) : "v"(r));
    } else {
      one = r;
      if (also_to != to) other = r;
    }
  }
}
template <class Op, class T>
__attribute__((target("avx2"))) void reduce_two_32(T* to, T* also_to, const T* first, const T* second,
                                                   std::size_t count, store_kind how, std::size_t ahead) noexcept {
  using vector = typename lanes<T>::of_32;
  for (std::size_t i = 0; i < count; i += 32 / sizeof(T)) {
    if (ahead > 0) {
      __builtin_prefetch(first + i + ahead);
      __builtin_prefetch(second + i + ahead);
    }
    const vector a = *reinterpret_cast<const vector*>(first + i);
    const vector b = *reinterpret_cast<const vector*>(second + i);
    vector r;
    if constexpr (Op::code == reduction::sum) r = a + b;
    else if constexpr (Op::code == reduction::product) r = a * b;
    else if constexpr (Op::code == reduction::average) r = (a + b) / T{2};
    else if constexpr (Op::code == reduction::minimum) r = ((a < b) | (a != a)) ? a : b;
    else r = ((a > b) | (a != a)) ? a : b;
    vector& one = *reinterpret_cast<vector*>(to + i);
    vector& other = *reinterpret_cast<vector*>(also_to + i);
    if (how == store_kind::streaming) {
      asm volatile("vmovntps %1, %0" : "=m"(one) : "x"(r));
      if (also_to != to) asm volatile("vmovntps %1, %0" : "=m"(other) : "x"(r));
    } else {
      one = r;
      if (also_to != to) other = r;
    }
  }
}
#endif

/// `to[i]` and, unless it is null, `also_to[i]` become the reduction of `first[i]` and `second[i]`, in this order, as
/// of two ranks. Destinations may be sources at the same index, not shifted. What was streamed is ordered before
/// later stores of this thread.
template <class Op, class T>
void reduce_two(T* to, T* also_to, const T* first, const T* second, std::size_t count,
                store_kind how = store_kind::cached) noexcept {
  const auto any = [=](std::size_t begin, std::size_t length) {
    if (length == 0) return;
    const auto source = [=](int q) { return q == 0 ? first : second; };
    const auto destination = [=](int d) { return d == 0 ? to : also_to; };
    reduce_elements<Op, T>(2, source, also_to == nullptr ? 1 : 2, destination, begin, length);
  };
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const auto width = static_cast<std::size_t>(vector_bytes());
    if (width > 0) {
      // Up to the first whole register of the destination; a second one that lies otherwise cannot be streamed to.
      const auto misaligned = [=](const T* p) { return reinterpret_cast<std::uintptr_t>(p) % width; };
      const std::size_t head = std::min(count, (width - misaligned(to)) % width / sizeof(T));
      const std::size_t body = (count - head) / (width / sizeof(T)) * (width / sizeof(T));
      const std::size_t ahead = count * sizeof(T) >= least_reduced_ahead ? fetched_ahead / sizeof(T) : 0;
      T* const other = also_to == nullptr ? to : also_to;
      if (misaligned(to) % sizeof(T) != 0 || misaligned(other) != misaligned(to)) how = store_kind::cached;
      any(0, head);
      if (width == 64) reduce_two_64<Op>(to + head, other + head, first + head, second + head, body, how, ahead);
      else reduce_two_32<Op>(to + head, other + head, first + head, second + head, body, how, ahead);
      any(head + body, count - head - body);
      if (how == store_kind::streaming) order_streaming_stores();
      return;
    }
  }
#endif
  any(0, count);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
