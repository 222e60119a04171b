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
#pragma once

#include <concepts>
#include <cstddef>

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

}  // namespace belay::inline BELAY_ABI::kernel
