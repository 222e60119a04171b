// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a kernel on the host, as a loop. A kernel promises that index i neither reads nor writes what another index
// writes. The compiler cannot see that through pointers, so it is told here and nowhere else. The kernel is taken by
// value, so that its pointers stay in registers during the loop.
//
//   struct doubled {
//     const float* in;
//     float* out;
//     void operator()(std::size_t i) const { out[i] = 2 * in[i]; }
//   };
//   belay::kernel::for_each_index(count, doubled{in, out});
//
// A kernel that only passes over memory, with more arrays than the processor's own prefetchers keep up with, names what
// an index will touch: see `prefetching`.
//
// Some indices at once, where a device moves 16 bytes an access, are a pack. A kernel that is bound by memory adds a
// form for that: it reads consecutive elements into registers, runs itself there, and writes them back. A launcher
// takes it where the arrays are aligned; the host's loop does not need it.
//
//   struct doubled {
//     float* x;
//     BELAY_HD void operator()(std::size_t i) const { x[i] *= 2; }
//
//     static constexpr std::size_t indices_of_pack = kernel::pack_size<float>;
//     BELAY_HD bool packs() const { return kernel::are_packs<indices_of_pack>(x); }
//     BELAY_HD void pack(std::size_t i) const {  // indices [i, i + indices_of_pack)
//       auto here = kernel::load_pack<indices_of_pack>(x, i);
//       kernel::run_pack<indices_of_pack>(doubled{here.of});
//       kernel::store_pack(here, x, i);
//     }
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

// Clang warns where it cannot vectorise such a loop, as in unoptimised and sanitised builds. The warning is placed in
// the function that the loop was inlined into, so it is turned off from here on, not around the loop.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

namespace belay::inline BELAY_ABI::kernel {

/// A functor that does one index of independent work. It can be called when const.
template <class F>
concept indexed = requires(const F& f, std::size_t i) {
  f(i);
};

/// Asks for the cache line of `array[index]`. Beyond the end of the array too: nothing is read.
template <class T>
BELAY_HD inline void prefetch(const T* array, std::size_t index) noexcept {
#if defined(__GNUC__) && !defined(__CUDA_ARCH__)
  const auto address = reinterpret_cast<std::uintptr_t>(array) + index * sizeof(T);
  __builtin_prefetch(reinterpret_cast<const void*>(address));
#else
  static_cast<void>(array), static_cast<void>(index);
#endif
}

/// A functor that asks for the cache lines of indices [i, i + F::indices_of_line), which are those of one line. The
/// loop on the host calls it ahead of the work; elsewhere it is not called.
template <class F>
concept prefetching = indexed<F> && requires(const F& f, std::size_t i) {
  { F::indices_of_line } -> std::convertible_to<std::size_t>;
  f.prefetch(i);
};
/// How far ahead, in lines: measured on AdamW, whose update is as fast as memory with it.
inline constexpr std::size_t lines_ahead = 32;

/// Runs `f(0) ... f(count - 1)` on the calling thread, vectorised where the arithmetic allows.
template <indexed F>
BELAY_HD constexpr void for_each_index(std::size_t count, F f) noexcept(noexcept(f(count))) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) f(i);
}

/// Runs `f(0) ... f(count - 1)` on the calling thread, vectorised where the arithmetic allows, with the lines of later
/// indices asked for.
template <prefetching F>
BELAY_HD inline void for_each_index(std::size_t count, F f) noexcept(noexcept(f(count))) {
  constexpr std::size_t line = F::indices_of_line;
  const std::size_t whole = count - count % line;
  for (std::size_t i = 0; i < whole; i += line) {
    f.prefetch(i + lines_ahead * line);
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
    for (std::size_t j = i; j < i + line; ++j) f(j);
  }
  for (std::size_t i = whole; i < count; ++i) f(i);
}

}  // namespace belay::inline BELAY_ABI::kernel

namespace belay::inline BELAY_ABI::kernel {

/// A kernel with such a form. `packs()`: its arrays are aligned for it.
template <class F>
concept packed = indexed<F> && requires(const F& f, std::size_t i) {
  { F::indices_of_pack } -> std::convertible_to<std::size_t>;
  { f.packs() } -> std::same_as<bool>;
  f.pack(i);
};

/// Indices of which the narrowest of these elements fill 16 bytes.
template <class... T>
inline constexpr std::size_t pack_size = [] {
  std::size_t least = 16;
  ((least = sizeof(T) < least ? sizeof(T) : least), ...);
  return 16 / least;
}();

/// `Count` elements, moved by 16 bytes an access.
template <class T, std::size_t Count>
struct alignas(Count * sizeof(T) < 16 ? Count * sizeof(T) : 16) pack_of {
  /// The elements.
  T of[Count];
};

/// Whether packs of all these arrays are aligned.
template <std::size_t Count, class... T>
[[nodiscard]] BELAY_HD bool are_packs(const T*... arrays) noexcept {
  return ((reinterpret_cast<std::uintptr_t>(arrays) % alignof(pack_of<T, Count>) == 0) && ...);
}

/// Whether `count` indices are done by packs: of a kernel's two forms its addresses and their number choose.
template <class F>
requires requires(const F& f) {
  { f.packs() } -> std::same_as<bool>;
}
[[nodiscard]] BELAY_HD bool takes_packs(const F& f, std::size_t count) noexcept {
  return count >= F::indices_of_pack && f.packs();
}

/// Elements [first, first + Count) of an array that is aligned for packs of so many, at `first` too.
template <std::size_t Count, class T>
[[nodiscard]] BELAY_HD pack_of<T, Count> load_pack(const T* array, std::size_t first) noexcept {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const pack_of<T, Count>*>(array + first);
#else
  pack_of<T, Count> out;
  for (std::size_t i = 0; i < Count; ++i) out.of[i] = array[first + i];
  return out;
#endif
}
/// Writes them.
template <std::size_t Count, class T>
BELAY_HD void store_pack(const pack_of<T, Count>& from, T* array, std::size_t first) noexcept {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<pack_of<T, Count>*>(array + first) = from;
#else
  for (std::size_t i = 0; i < Count; ++i) array[first + i] = from.of[i];
#endif
}
/// Writes them to memory of the device by one access. `store_pack` does so too, but for elements that have been in
/// registers for long, of which nvcc writes each.
template <std::size_t Count, class T>
BELAY_HD void store_global_pack(const pack_of<T, Count>& from, T* array, std::size_t first) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof from == 16) {
    unsigned word[4];
    __builtin_memcpy(word, from.of, sizeof word);
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(array + first)), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
    return;
  }
#endif
  store_pack(from, array, first);
}
/// f(0) ... f(Count - 1), unrolled on a device, so that what they index may be registers.
template <std::size_t Count, indexed F>
BELAY_HD void run_pack(const F& f) noexcept {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (std::size_t i = 0; i < Count; ++i) f(i);
}

}  // namespace belay::inline BELAY_ABI::kernel
