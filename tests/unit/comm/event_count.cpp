// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/comm/event_count.hpp"

#include <doctest/doctest.h>

#include <chrono>

using belay::spins_in;

TEST_CASE("a spin is as many polls as its time takes, also where that is seconds") {
  const int least = spins_in(std::chrono::microseconds(20));
  CHECK(least > 20);  // no machine's hint takes a microsecond
  CHECK(spins_in(std::chrono::seconds(2)) > 5'000 * least);
  CHECK(spins_in(std::chrono::nanoseconds(0)) >= 1);
  CHECK(spins_in(std::chrono::hours(24)) == 1'000'000'000);
}
