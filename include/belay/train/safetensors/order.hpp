// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stable merge sort of positions. It costs an includer a few lines where <algorithm> costs thousands, and is
// instantiated once for each kind of key. Headers come from outside: no order of their entries makes it quadratic.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

/// The positions 0 to count - 1, sorted: `before(a, b)` says whether position a comes before position b. Equal ones
/// keep their order.
template <class Before>
[[nodiscard]] std::vector<std::size_t> order_of(std::size_t count, Before before) {
  std::vector<std::size_t> from(count);
  std::vector<std::size_t> to(count);
  for (std::size_t i = 0; i < count; ++i) from[i] = i;
  for (std::size_t width = 1; width < count; width *= 2) {  // merges neighbours that are each in order
    for (std::size_t begin = 0; begin < count; begin += 2 * width) {
      const std::size_t middle = count - begin < width ? count : begin + width;
      const std::size_t end = count - middle < width ? count : middle + width;
      std::size_t left = begin;
      std::size_t right = middle;
      for (std::size_t i = begin; i < end; ++i) {
        const bool take_left = right == end || (left < middle && !before(from[right], from[left]));
        to[i] = from[take_left ? left++ : right++];
      }
    }
    std::swap(from, to);
  }
  return from;
}

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
