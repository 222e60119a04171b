// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/owed.hpp"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "belay/step.hpp"
#include "support/scaling.hpp"

using scaling_bench::bench;

namespace {

static_assert(!std::is_move_constructible_v<belay::owed> && !std::is_copy_constructible_v<belay::owed>);

// A parameter that counts its contributions.
struct counted final : belay::contribution_target {
  std::vector<std::size_t> micro_batches;
  float value = 0;
  bool stored = true;
  void contribute(std::size_t micro_batch, const belay::stream_event&, belay::where) override {
    micro_batches.push_back(micro_batch);
  }
  [[nodiscard]] belay::contribution_target* contribution() { return stored ? this : nullptr; }
  [[nodiscard]] belay::view<float, 1> gradient_values() { return {&value, {1}}; }
  [[nodiscard]] static const char* name() { return "weight"; }
};

std::string message(auto&& action) {
  try {
    action();
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a discharged backward contributes each of its parameters once, for its micro-batch") {
  bench b;
  counted weight, bias, other;
  belay::step step{b.engine};
  auto first = belay::owe(step, "attention", {weight, bias, weight});
  auto second = belay::owe(step.micro_batch(3), {"attention", 5}, 4096, {other});
  auto third = belay::owe(step, "gelu");
  CHECK(b.engine.obligations().open_count() == 3);
  CHECK(weight.micro_batches.empty());
  std::move(third).discharge();
  std::move(second).discharge();
  std::move(first).discharge();
  CHECK(weight.micro_batches == std::vector<std::size_t>{0});
  CHECK(bias.micro_batches == std::vector<std::size_t>{0});
  CHECK(other.micro_batches == std::vector<std::size_t>{3});
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("one that is forgotten is named by the commit, with layer, micro-batch, bytes and line") {
  bench b;
  counted weight;
  belay::handle_store<belay::owed> calls{2};
  belay::step step{b.engine};
  calls.keep(0, belay::owe(step.micro_batch(1), {"mlp", 2}, 640, {weight}));
  const std::string line = "owed.cpp:" + std::to_string(__LINE__ - 1);
  calls.keep(1, belay::owe(step.micro_batch(1), {"mlp", 3}, {weight}));
  calls.take(1).discharge();
  std::string said;
  try {
    auto outcome = std::move(step).commit();
    CHECK(belay::refused(outcome) != nullptr);
  } catch (const belay::open_obligations& open) {
    said = open.what();
  }
  CHECK(weight.micro_batches == std::vector<std::size_t>{1});
  if constexpr (belay::checked(belay::check_level::local)) {
    CHECK(said.find("owed backward of layer 2 'mlp' (micro-batch 1, holds 640 bytes) opened at ") != std::string::npos);
    CHECK(said.find(line) != std::string::npos);
    CHECK(said.find("it was never discharged") != std::string::npos);
    CHECK(said.find("1 obligation is") != std::string::npos);
  }
}

TEST_CASE("one that is discharged twice, or after its step, contributes nothing more") {
  bench b;
  counted weight;
  belay::handle_store<belay::owed> calls{2}, late{1};
  {
    belay::step step{b.engine};
    calls.keep(0, belay::owe(step, "mlp", {weight}));
    calls.keep(1, std::move(calls.at(0)).hand_over());
    const std::string twice = message([&] { std::move(calls.at(0)).discharge(); });  // it owes nothing any more
    CHECK((twice.find("discharged twice") != std::string::npos) == belay::checked(belay::check_level::local));
    CHECK(weight.micro_batches.empty());
    calls.take(1).discharge();
    CHECK(weight.micro_batches.size() == 1);
    late.keep(0, belay::owe(step, "mlp", {weight}));
    step.cut_off();
  }
  const std::string after = message([&] { late.take(0).discharge(); });
  CHECK((after.find("after its step had ended") != std::string::npos) == belay::checked(belay::check_level::local));
  CHECK(weight.micro_batches.size() == 1);
}

TEST_CASE("a discarded one contributes nothing") {
  bench b;
  counted weight;
  belay::step step{b.engine};
  belay::owe(step, "mlp", {weight}).discard("its gradient is known to be zero");
  CHECK(weight.micro_batches.empty());
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a parameter that no store has is named where its backward is owed") {
  bench b;
  counted weight;
  weight.stored = false;
  belay::step step{b.engine};
  const std::string said = message([&] { belay::owe(step, "mlp", {weight}).discharge(); });
  CHECK(said.find("a backward is owed of parameter weight, which is in no parameter_store") != std::string::npos);
  step.cut_off();
}
