// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/bounds.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace {

TEST_CASE("the lesser and the greater of values") {
  static_assert(belay::lesser_of(2, 1) == 1 && belay::greater_of(2, 1) == 2);
  static_assert(belay::lesser_of({3, 1, 2}) == 1 && belay::greater_of({1, 3, 2}) == 3);
  static_assert(belay::lesser_of<std::int64_t>(1, std::size_t{7}) == 1);
  const int a = 1, b = 1;  // equal ones: the first, as the standard library's
  CHECK(&belay::lesser_of(a, b) == &a);
  CHECK(&belay::greater_of(a, b) == &a);
}

template <class T>
constexpr bool as_the_standard_library_says = belay::largest_value<T> == (std::numeric_limits<T>::max)();

TEST_CASE("the largest value of a type") {
  static_assert(as_the_standard_library_says<std::uint8_t> && as_the_standard_library_says<std::int16_t>);
  static_assert(as_the_standard_library_says<std::int64_t> && as_the_standard_library_says<std::size_t>);
  static_assert(as_the_standard_library_says<float> && as_the_standard_library_says<double>);
  using clock = std::chrono::steady_clock;
  static_assert(belay::largest_value<clock::duration> == (clock::duration::max)());
  static_assert(belay::largest_value<clock::time_point> == (clock::time_point::max)());
}

}  // namespace
