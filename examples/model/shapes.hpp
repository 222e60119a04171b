// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Shapes of activations: [sequences, length, width] for layers, [rows, width] for arithmetic.
#pragma once

#include <cstddef>

#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"
#include "belay/core/view.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/math.hpp"
#include "belay/step/frame.hpp"

namespace model {

namespace kernel = belay::kernel;
using belay::adding_to;
using belay::compute_type_t;
using belay::extents;
using belay::keep;
using belay::operand;
using belay::scratch;
using belay::transposed;
using belay::view;

/// The rows of activations, as a matrix view.
template <class T>
[[nodiscard]] view<T, 2> rows_of(view<T, 3> activations) {
  return {activations.data(), {activations.extent(0) * activations.extent(1), activations.extent(2)}};
}

/// One number for each row.
template <class T>
[[nodiscard]] extents<1> row_count(view<T, 3> activations) {
  return {activations.extent(0) * activations.extent(1)};
}

/// That view, to read.
template <class T, std::size_t Rank>
[[nodiscard]] view<const T, Rank> to_read(view<T, Rank> x) {
  return x;
}

/// Numbers rounded to T, in scratch; themselves where T is not narrower.
template <class T, std::size_t Rank>
[[nodiscard]] view<const T, Rank> rounded(auto& frame, view<const compute_type_t<T>, Rank> x) {
  if constexpr (kernel::real<T>) {
    return x;
  } else {
    const auto out = scratch<T>(frame, x.shape());
    frame.each(x.size(), kernel::copy<compute_type_t<T>, T>{x.data(), out.data()});
    return out;
  }
}

/// Rounds numbers to elements, in the memory of numbers that nobody reads any more, and which are not `x` itself.
template <class T, std::size_t Rank>
[[nodiscard]] view<const T, Rank> rounded_over(auto& frame, view<const compute_type_t<T>, Rank> x,
                                               [[maybe_unused]] view<compute_type_t<T>, Rank> unread) {
  if constexpr (kernel::real<T>) {
    return x;
  } else {
    const view<T, Rank> out(reinterpret_cast<T*>(unread.data()), x.shape());
    frame.each(x.size(), kernel::copy<compute_type_t<T>, T>{x.data(), out.data()});
    return out;
  }
}

/// Where a gradient is computed before it is rounded into `x`: scratch, or `x` itself where it is not narrower.
template <class T, std::size_t Rank>
[[nodiscard]] view<compute_type_t<T>, Rank> numbers_for(auto& frame, view<T, Rank> x) {
  if constexpr (kernel::real<T>)
    return x;
  else
    return scratch<compute_type_t<T>>(frame, x.shape());
}

}  // namespace model
