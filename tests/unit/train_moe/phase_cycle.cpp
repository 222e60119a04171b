// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/phase_cycle.hpp"

#include <doctest/doctest.h>

#include "belay/core/error.hpp"
#include "train_moe/command_line.hpp"

using belay::phase;

TEST_CASE("a cycle ends with the last of its training steps") {
  const train_moe::phase_cycle cycle = train_moe::parse_phases("train=4,rollout=1,eval=2");
  CHECK(cycle.text() == "train=4,rollout=1,eval=2");
  CHECK(cycle.entries()[1].which == phase::rollout);
  CHECK(cycle.entries()[2].count == 2);
  CHECK(cycle.has(phase::eval));
  for (std::size_t step = 1; step <= 12; ++step) CHECK(cycle.ends_with(step) == (step % 4 == 0));
}

TEST_CASE("training alone has no other phase to go to") {
  for (const train_moe::phase_cycle& cycle : {train_moe::phase_cycle{}, train_moe::parse_phases("train=1")}) {
    CHECK(!cycle.ends_with(1));
    CHECK(!cycle.has(phase::eval));
  }
  CHECK(train_moe::phase_cycle{}.text().empty());
}

TEST_CASE("what is no cycle is refused with what would be one") {
  const auto refused = [](const char* text, const char* why) {
    CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_phases(text)), doctest::Contains(why), belay::input_error);
  };
  refused("eval=1", "begins with train, as in train=4,eval=1,rollout=1");
  refused("train=0", "train needs a whole number from 1");
  refused("train=-1", "train needs a whole number from 1");
  refused("train=1x", "train needs a whole number from 1");
  refused("train=1,eval=1,eval=1", "'eval' is given twice");
  refused("train=1,test=1", "the phases are train, eval and rollout");
  refused("", "expected name=value");
  refused("train", "expected name=value");
}
