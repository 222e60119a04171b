// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/phase_cycle.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

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

TEST_CASE("a size beyond its limit is refused with its flag and the bytes that it would take, exit code 2") {
  const auto refused = [](std::size_t train_moe::options::*what, std::size_t value, const char* why) {
    train_moe::options run;
    run.*what = value;
    CHECK_THROWS_WITH_AS(train_moe::check(run), doctest::Contains(why), belay::input_error);
  };
  refused(&train_moe::options::sequence, 1'000'000'000,
          "--sequence 1000000000: the tokens of one step alone would need 256000000000 bytes; it is at most 1048576");
  refused(&train_moe::options::micro_batch_size, 1'000'000'000,
          "--micro-batch-size 1000000000: the tokens of one step alone would need 8192000000000 bytes; it is at most");
  refused(
      &train_moe::options::micro_batches, std::numeric_limits<std::size_t>::max(),
      "--micro-batches 18446744073709551615: the tokens of one step alone would need more than 9223372036854775807");
  for (const char* const flag : {"--sequence", "--micro-batch-size", "--micro-batches"}) {
    std::vector<std::string> words{"train_moe", flag, "1000000000"};
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    int code = 0;
    CHECK_FALSE(train_moe::parse(3, pointers.data(), code));
    CHECK(code == 2);
  }
}

TEST_CASE("an entry of a budget that is too large, or no number, is named") {
  const auto refused = [](const char* text, const char* why) {
    CHECK_THROWS_WITH_AS(static_cast<void>(train_moe::parse_budget(text)), doctest::Contains(why), belay::input_error);
  };
  refused("pinned=1MiB,device=99999999999999999999", "--budget: device=99999999999999999999 is more than");
  refused("file=9000000TiB", "--budget: file=9000000TiB is more than 9000000000000000000 bytes");
  refused("host=1e400", "without host there is no limit");
  refused("host=inf", "without host there is no limit");
  refused("host=-1", "--budget: host needs bytes");
  refused("host=nan", "--budget: host needs bytes");
  refused("host=1PB", "--budget: host needs bytes");
  CHECK(train_moe::parse_budget("device=1.5KiB,file=8e18")[belay::tier::device] == 1536);
}
