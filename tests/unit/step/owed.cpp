// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/step/owed.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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
  bool seen = false;  // whether the host sees its memory
  [[nodiscard]] std::uint64_t content() const override { return seen ? 1 + static_cast<std::uint64_t>(value) : 0; }
  [[nodiscard]] std::string_view parameter_name() const noexcept override { return "weight"; }
  void contribute(std::size_t micro_batch, const belay::stream_event&, belay::where) override {
    micro_batches.push_back(micro_batch);
  }
  [[nodiscard]] belay::contribution_target* contribution() { return stored ? this : nullptr; }
  [[nodiscard]] belay::view<float, 1> gradient_values() { return {&value, {1}}; }
  [[nodiscard]] static const char* name() { return "weight"; }
};

// Functions for forward and backward, which have the store in common.
struct trainer {
  belay::owed_store owed;
  counted weight, bias;
  void forward(const auto& scope, std::size_t layer) {
    owed.keep(belay::owe(scope, {"attention", layer}, {weight}));
    owed.keep(belay::owe(scope, {"mlp", layer}, std::vector<belay::owed_parameter>{weight, bias}));
  }
  void backward(std::size_t layer, std::size_t micro_batch) {
    owed.take({"mlp", layer}, micro_batch).backward([] {});
    owed.take({"attention", layer}, micro_batch).backward([] {});
  }
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

TEST_CASE("a backward that is handed over runs once, and then contributes, also where it adds nothing") {
  bench b;
  counted weight;
  weight.seen = true;
  belay::step step{b.engine};
  std::vector<std::string> order;
  auto owed = belay::owe(step.micro_batch(2), "mlp", {weight});
  std::move(owed).backward([&] {
    order.emplace_back("backward");
    CHECK(weight.micro_batches.empty());
    CHECK(b.engine.obligations().open_count() == 1);
  });
  CHECK(order.size() == 1);
  CHECK(weight.micro_batches == std::vector<std::size_t>{2});
  CHECK(b.engine.obligations().open_count() == 0);
  const std::string twice = message([&] { std::move(owed).backward([&] { order.emplace_back("again"); }); });
  CHECK((twice.find("discharged twice") != std::string::npos) == belay::checked(belay::check_level::local));
  CHECK(order.size() == 1);
  CHECK(weight.micro_batches.size() == 1);
  step.cut_off();
}

TEST_CASE("a backward that throws is still owed") {
  bench b;
  counted weight;
  belay::step step{b.engine};
  auto owed = belay::owe(step, "mlp", {weight});
  CHECK(message([&] { std::move(owed).backward([] { throw std::runtime_error("out of paper"); }); }) == "out of paper");
  CHECK(weight.micro_batches.empty());
  CHECK(b.engine.obligations().open_count() == 1);
  std::move(owed).discard("the test goes on");
  step.cut_off();
}

TEST_CASE("a discharge behind no backward is named in a checked build: by layer, micro-batch, parameters and cure") {
  bench b;
  counted weight, bias, elsewhere;
  weight.seen = bias.seen = true;
  belay::step step{b.engine};
  const auto discharged = [&](auto&& before) {
    return message([&] {
      auto owed = belay::owe(step.micro_batch(1), {"mlp", 3}, {weight, bias, elsewhere});
      before();
      std::move(owed).discharge();
    });
  };
  CHECK(discharged([&] { bias.value += 1; }).empty());  // one is enough: the other's gradient may be zero
  if constexpr (belay::checked(belay::check_level::local)) {
    const std::string said = discharged([] {});
    CHECK(said.find("the owed backward of layer 3 'mlp' (micro-batch 1) opened at ") != std::string::npos);
    CHECK(said.find("owed.cpp:") != std::string::npos);
    CHECK(said.find("nothing was added since to the gradient of weight, weight, weight: discharge after the backward, "
                    "or std::move(owed).backward(f)") != std::string::npos);
    CHECK(weight.micro_batches == std::vector<std::size_t>{1});
  }
  weight.seen = bias.seen = false;  // of a device: not known
  CHECK(discharged([] {}).empty());
  step.cut_off();
}

TEST_CASE("owed backwards are kept by layer and micro-batch, as a member, and given back in any order") {
  trainer one;
  bench b;
  for (int again = 0; again < 2; ++again) {
    belay::step step{b.engine};
    for (std::size_t m = 0; m < 3; ++m)
      for (std::size_t layer = 0; layer < 7; ++layer) one.forward(step.micro_batch(m), layer);
    CHECK(one.owed.size() == 42);
    CHECK(one.owed.holds({"mlp", 6}, 2));
    CHECK_FALSE(one.owed.holds({"mlp", 6}, 3));
    const std::string name = std::string("ml") + "p";  // a name is told apart by its letters, not by where it lies
    CHECK(one.owed.holds({name.c_str(), 6}, 2));
    for (const std::size_t m : {std::size_t{1}, std::size_t{0}, std::size_t{2}})
      for (std::size_t layer = 7; layer-- > 0;) one.backward(layer, m);
    CHECK(one.owed.size() == 0);
    CHECK(one.weight.micro_batches.size() == 42);
    CHECK(one.bias.micro_batches.size() == 21);
    one.weight.micro_batches.clear(), one.bias.micro_batches.clear();
    auto outcome = std::move(step).commit();
    CHECK(belay::committed(outcome) != nullptr);
  }
}

TEST_CASE("an owed_store names what it lacks, what it has already, and what it still holds at the commit") {
  bench b;
  counted weight;
  belay::owed_store calls;
  {
    belay::step step{b.engine};
    calls.keep(belay::owe(step, {"mlp", 2}, 640, {weight}));
    CHECK(message([&] {
            calls.take({"mlp", 1}).discharge();
          }).find("no owed backward of layer 1 'mlp' (micro-batch 0) is kept in this owed_store") != std::string::npos);
    const std::string twice = message([&] {
      auto again = belay::owe(step, {"mlp", 2}, {weight});
      try {
        calls.keep(std::move(again));
      } catch (...) {
        std::move(again).discard("the first is kept");
        throw;
      }
    });
    CHECK(twice.find("holds a handle that still owes: that of layer 'mlp'") != std::string::npos);
    std::string at_the_end;
    try {
      auto outcome = std::move(step).commit();
      CHECK(belay::refused(outcome) != nullptr);
    } catch (const belay::open_obligations& open) {
      at_the_end = open.what();
    }
    CHECK((at_the_end.find("owed backward of layer 2 'mlp' (micro-batch 0, holds 640 bytes)") != std::string::npos) ==
          belay::checked(belay::check_level::local));
  }
  belay::step next{b.engine};  // what the last step has left makes room
  calls.keep(belay::owe(next, {"mlp", 2}, {weight}));
  calls.take({"mlp", 2}).backward([] {});
  calls.forget();
  auto outcome = std::move(next).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("a range of parameters is owed as a list of them is, up to 16") {
  bench b;
  std::vector<counted> weights(17);
  std::vector<belay::owed_parameter> all(weights.begin(), weights.end());
  belay::owed_parameter copied{all.front()};  // a copy, and no parameter of its own
  CHECK(&copied.target() == &weights.front());
  belay::step step{b.engine};
  CHECK(message([&] {
          belay::owe(step, "block", all).discharge();
        }).find("one owed backward names 17 parameters, 16 at most") != std::string::npos);
  belay::owe(step, "block", 64, std::span(all).first(16)).discharge();
  for (std::size_t i = 0; i < weights.size(); ++i) CHECK(weights[i].micro_batches.size() == (i < 16 ? 1 : 0));
  auto outcome = std::move(step).commit();
  CHECK(belay::committed(outcome) != nullptr);
}

TEST_CASE("the bytes that owed backwards keep are the engine's until they end, and none are left by a step") {
  bench b;
  counted weight;
  const std::size_t before = b.meter.live_bytes();
  {
    belay::step step{b.engine};
    auto first = belay::owe(step, "attention", 1000, {weight});
    auto second = belay::owe(step, "mlp", 500);
    CHECK(b.engine.owed().live_bytes() == 1500);
    CHECK(b.meter.live_bytes() == before + 1500);
    std::move(first).backward([] {});
    CHECK(b.meter.live_bytes() == before + 500);
    auto third = std::move(second).hand_over();
    CHECK(b.engine.owed().live_bytes() == 500);
    step.cut_off();
    CHECK(b.meter.live_bytes() == before);
    try {
      std::move(third).discard("its step has ended");
      CHECK_FALSE(belay::checked(belay::check_level::local));
    } catch (const belay::usage_error&) {
      CHECK(belay::checked(belay::check_level::local));
    }
  }
  CHECK(b.meter.live_bytes() == before);
  CHECK(b.engine.owed().peak_bytes() == 1500);
}
