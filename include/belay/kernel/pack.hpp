// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Some indices of a kernel at once, where a device moves 16 bytes an access. A kernel that is bound by memory adds a
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
#include "belay/kernel/for_each.hpp"

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
/// f(0) ... f(Count - 1), of a kernel whose arrays are packs.
template <std::size_t Count, indexed F>
BELAY_HD void run_pack(const F& f) noexcept {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (std::size_t i = 0; i < Count; ++i) f(i);
}

}  // namespace belay::inline BELAY_ABI::kernel
