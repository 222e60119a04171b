// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/checked_size.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <string>

using belay::checked_size;

namespace {
constexpr std::size_t most = SIZE_MAX;
}

TEST_CASE("sums and products that fit are exact") {
  static_assert((checked_size(3) * 4 + 5).saturated() == 17);
  for (std::size_t a : {std::size_t{0}, std::size_t{1}, std::size_t{0xffffffff}, most / 2, most - 1, most}) {
    CHECK((checked_size(a) + 0).saturated() == a);
    CHECK((checked_size(a) * 1).saturated() == a);
    CHECK((checked_size(a) * 0).saturated() == 0);
    CHECK((checked_size(0) * a).saturated() == 0);
  }
  CHECK((checked_size(std::size_t{1} << 32) * (std::size_t{1} << 31)).saturated() == std::size_t{1} << 63);
  CHECK((checked_size(most - 1) + 1).saturated() == most);
}

TEST_CASE("what does not fit stays too large, in any order of terms") {
  CHECK_FALSE((checked_size(most) + 1 + 6).fits());
  CHECK_FALSE((checked_size(6) + (checked_size(most) + 1)).fits());
  CHECK_FALSE((checked_size(std::size_t{1} << 32) * (std::size_t{1} << 32) * 3).fits());
  CHECK_FALSE((checked_size(most / 2) + 1).fits());  // no object is larger
  CHECK(checked_size(belay::largest_size).fits());
  CHECK((checked_size(most) * 2 * 0).fits());  // a tensor without rows has no elements
}

TEST_CASE("rounding up does not wrap to nothing") {
  CHECK(checked_size(0).rounded_up(64).saturated() == 0);
  CHECK(checked_size(1).rounded_up(64).saturated() == 64);
  CHECK(checked_size(64).rounded_up(64).saturated() == 64);
  CHECK(checked_size(65).rounded_up(64).saturated() == 128);
  CHECK_FALSE(checked_size(most - 3).rounded_up(64).fits());
}

TEST_CASE("the error says what was asked, and is a usage_error") {
  const auto ask = [] {
    return (checked_size(most) * 4).value([] { return "the heap's 5 parts are"; }, belay::where::current());
  };
  CHECK_THROWS_AS(static_cast<void>(ask()), belay::usage_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(ask()), doctest::Contains("the heap's 5 parts are more than any memory holds"),
                       belay::size_error);
  CHECK((checked_size(7) * 4).value([] { return ""; }, belay::where::current()) == 28);
}
