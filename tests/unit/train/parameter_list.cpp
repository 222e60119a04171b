// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/parameter_list.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "unit/train/support/messages.hpp"

namespace {

// Three parameters of 5, 0 and 7 elements with a gap, of which rank r adds r + 1 to every gradient in each micro-batch.
struct arrays {
  std::vector<float> values = std::vector<float>(20, 1.0F), gradients = std::vector<float>(20, 99.0F);
};

std::vector<float> gradients_after(int ranks, bool zero1, int skipped = -1) {
  std::vector<float> out;
  const auto body = [&](auto& rank, auto& run) {
    const auto all = std::make_shared<arrays>();
    run.keep(all);
    belay::parameter_list<float> list{all->values, all->gradients};
    list.add("a", {5}), list.add("empty", {0, 3}), list.add_at(8, "b", {7});
    belay::mesh mesh{rank, {.data = rank.size()}};
    belay::parameter_store store{run, mesh, list, zero1 ? belay::zero_stage::optimizer_state : belay::zero_stage::none,
                                 belay::store_options{.bucket_bytes = 16}};
    belay::adamw optimizer{store};
    for ([[maybe_unused]] auto number : run.steps(1)) {
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        auto owed = belay::owe(step.micro_batch(m), "layer", {list[0], list[1], list[2]});
        for (float& g : all->gradients) g += 1;
        if (skipped == rank.number() && m == 1)
          std::move(owed).discard("the wrong trainer");
        else
          std::move(owed).discharge();
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      if (auto* ok = belay::committed(outcome)) {
        if (!run.rehearsing() && rank.number() == 0) out = all->gradients;
        optimizer.apply(std::move(*ok), {.learning_rate = 0.5});
        if (run.rehearsing()) continue;
        for (std::size_t i : std::initializer_list<std::size_t>{0, 4, 8, 14})
          CHECK(all->values[i] < 1);  // on every rank, whoever owns it
        for (std::size_t i : std::initializer_list<std::size_t>{5, 7, 15, 19}) CHECK(all->values[i] == 1);
      }
    }
  };
  belay::launch(belay::host::world{ranks}, body);
  return out;
}

}  // namespace

TEST_CASE("gradients in a trainer's own arrays are zeroed, summed over ranks and divided once; gaps are not touched") {
  for (int ranks : {1, 2, 3}) {
    const std::vector<float> found = gradients_after(ranks, false);
    REQUIRE(found.size() == 20);
    for (std::size_t i : std::initializer_list<std::size_t>{0, 4, 8, 14})
      CHECK(found[i] == 2.0F * static_cast<float>(ranks) / 4);
    for (std::size_t i : std::initializer_list<std::size_t>{5, 7, 15, 19})
      CHECK(found[i] > 99);  // what the trainer itself has added
    static_cast<void>(gradients_after(ranks, true));
  }
}

TEST_CASE("a parameter that did not contribute a micro-batch is named") {
  CHECK_THROWS_WITH_AS(static_cast<void>(gradients_after(1, true, 0)), doctest::Contains("parameter a misses"),
                       belay::usage_error);
}

TEST_CASE("what does not fit the memory is refused by name") {
  std::vector<float> values(10), gradients(10);
  belay::parameter_list<float> list{values, gradients};
  list.add("a", {4});
  CHECK_THROWS_WITH_AS(list.add("b", {7}), doctest::Contains("parameter b: elements 4 to 11"), belay::usage_error);
  CHECK_THROWS_WITH_AS(list.add_at(3, "c", {1}), doctest::Contains("parameter c: elements 3 to 4"), belay::usage_error);
  list.add("d", {6});
  CHECK_THROWS_AS(list.add("e", {1}), belay::usage_error);
  CHECK_THROWS_AS((belay::parameter_list<float>{values, std::span(gradients).first(9)}), belay::usage_error);
}

// What ZeRO 2 and 3 divide a rank has no whole memory of, so there is nothing that it could borrow.
TEST_CASE("borrowed memory is refused by ZeRO 2 and 3, on any number of ranks, and stays as it was") {
  using belay::zero_stage;
  for (const int ranks : {1, 2})
    for (const zero_stage stage :
         {zero_stage::none, zero_stage::optimizer_state, zero_stage::gradients, zero_stage::parameters}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(stage));
      const auto all = std::make_shared<arrays>();
      const auto body = [&](auto& rank, auto& run) {
        belay::parameter_list<float> list{all->values, all->gradients};
        list.add("a", {5});
        belay::mesh mesh{rank, {.data = rank.size()}};
        belay::parameter_store store{run, mesh, list, stage};
      };
      if (stage < zero_stage::gradients)
        CHECK_NOTHROW(static_cast<void>(belay::rehearse(ranks, body)));
      else
        CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{ranks}, body),
                             doctest::Contains("borrowed memory holds whole values and gradients"), belay::usage_error);
      CHECK(all->values == std::vector<float>(20, 1.0F));
      CHECK(all->gradients == std::vector<float>(20, 99.0F));
    }
}

// Of a trainer that moves its norm weights: AdamW's default decay would shrink them, with no gradient at all.
TEST_CASE("a specification says what is decayed and how many layers share a parameter; its values are the trainer's") {
  const auto all = std::make_shared<arrays>();
  const auto body = [&](auto& rank, auto& run) {
    belay::parameter_list<float> list{all->values, all->gradients};
    const belay::parameter_spec named{.name = "norm", .shape = {4}, .decay = belay::weight_decay::no};
    const std::vector<std::int64_t> foreign{2, 3};  // as other libraries have extents
    list.add(named);
    list.add({.name = "tied", .shape = foreign, .uses = 2});
    list.add_at(12, {.name = "plain", .shape = {3}, .first_values = belay::initial::filled()});
    list.add("last", std::vector<std::size_t>{1, 2});
    belay::mesh mesh{rank, {.data = 1}};
    belay::parameter_store store{run, mesh, list, belay::zero<1>{}};
    belay::adamw optimizer{store};
    for ([[maybe_unused]] auto number : run.steps(10)) {
      belay::step step{run.engine(), store};
      belay::owe(step, "all", {list[0], list[1], list[2], list[3]}).backward([] {});
      belay::owe(step, "again", {list[1]}).backward([] {});
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 0.1});
    }
  };
  belay::launch(belay::host::world{1}, body);
  for (std::size_t i = 0; i < 4; ++i) CHECK(all->values[i] == 1);
  for (std::size_t i : std::initializer_list<std::size_t>{4, 9, 12, 14, 15, 16})
    CHECK(all->values[i] == doctest::Approx(std::pow(0.99, 10)));
  for (std::size_t i : std::initializer_list<std::size_t>{10, 11, 17, 19}) CHECK(all->values[i] == 1);
}

TEST_CASE("a specification that asks for other values than the memory's is refused by name") {
  std::vector<float> values(10), gradients(10);
  belay::parameter_list<float> list{values, gradients};
  for (const belay::initial& other : {belay::initial::normal(0.02), belay::initial::constant(1)})
    CHECK_THROWS_WITH_AS(
        list.add({.name = "a", .shape = {4}, .first_values = other}),
        doctest::Contains("parameter a: a parameter_list lies over values that the trainer has written"),
        belay::usage_error);
  CHECK_THROWS_WITH_AS(list.add({.name = "a", .shape = std::vector<int>{2, -2}}), doctest::Contains("is negative"),
                       belay::usage_error);
  CHECK_THROWS_WITH_AS(list.add("a", std::vector<int>(5, 1)), doctest::Contains("at most 4 dimensions"),
                       belay::usage_error);
  list.add({.name = "a", .shape = {4}});
  CHECK(list[0].shape() == belay::parameter_shape{4});
}

// Reported: on one rank of two the backward of a function was left out, or came after its discharge, and the loss fell.
TEST_CASE("a discharge without its backward, or before it, is named in a checked build, on the rank that has it") {
  enum class slip : std::uint8_t { none, no_backward, discharged_first, zeroed, ran_by_the_handle };
  const auto run_with = [](slip how) {
    belay::launch(belay::host::world{2}, [=](auto& rank, auto& run) {
      const auto all = std::make_shared<arrays>();
      run.keep(all);
      belay::parameter_list<float> list{all->values, all->gradients};
      list.add("a", {5}), list.add("b", {7});
      belay::mesh mesh{rank, {.data = 2}};
      belay::parameter_store store{run, mesh, list, belay::zero<1>{}, belay::store_options{.bucket_bytes = 16}};
      belay::adamw optimizer{store};
      for ([[maybe_unused]] auto number : run.steps(2)) {
        belay::step step{run.engine(), store};
        auto a = belay::owe(step, {"a", 0}, {list[0]});
        auto b = belay::owe(step, {"b", 0}, {list[1]});
        const auto backward = [&](std::size_t first, std::size_t last) {
          for (std::size_t i = first; i < last; ++i) all->gradients[i] += 1;
        };
        backward(5, 12), std::move(b).discharge();
        const bool slips = rank.number() == 1;
        if (!slips || how == slip::none || how == slip::zeroed) backward(0, 5);
        if (slips && how == slip::zeroed) std::fill_n(all->gradients.begin(), 5, 0.0F);
        if (slips && how == slip::ran_by_the_handle)
          std::move(a).backward([] {});  // a backward whose gradient is zero
        else
          std::move(a).discharge();
        if (slips && how == slip::discharged_first) backward(0, 5);
        auto outcome = std::move(step).commit(mesh, belay::samples{2});
        if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      }
    });
  };
  CHECK_NOTHROW(run_with(slip::none));
  CHECK_NOTHROW(run_with(slip::ran_by_the_handle));
  if constexpr (belay::checked(belay::check_level::local))
    for (const slip how : {slip::no_backward, slip::discharged_first, slip::zeroed})
      CHECK_THROWS_WITH_AS(run_with(how),
                           doctest::Contains("the owed backward of layer 0 'a' (micro-batch 0) opened at "),
                           belay::usage_error);
}

TEST_CASE("what owed backwards keep is in the plan, to the byte, where no more is owed at a time than was said") {
  const auto all = std::make_shared<arrays>();
  const auto body = [&](auto& rank, auto& run) {
    belay::parameter_list<float> list{all->values, all->gradients};
    list.add("a", {5});
    belay::mesh mesh{rank, {.data = 1}};
    belay::parameter_store store{run, mesh, list, belay::zero<1>{}};
    for ([[maybe_unused]] auto number : run.steps(2)) {
      belay::step step{run.engine(), store};
      step.micro_batches(2);
      for (std::size_t m = 0; m < 2; ++m) {
        auto first = belay::owe(step.micro_batch(m), "attention", 3000, {list[0]});
        auto second = belay::owe(step.micro_batch(m), "mlp", 200);
        std::move(second).backward([] {});
        std::move(first).backward([] {});
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
    }
    if (run.rehearsing()) return;
    std::size_t owed = 0, live = 0;
    for (const auto& row : run.planned().items())
      if (row.purpose == "owed activations") owed += row.bytes;
    CHECK(owed == 3200);
    CHECK(run.planned().peak_bytes(belay::tier::device) == run.meters()[belay::tier::device].peak_bytes());
    run.each_live([&](belay::tier in, std::string_view, std::size_t bytes) {
      if (in == belay::tier::device) live += bytes;
    });
    CHECK(live == run.meters()[belay::tier::device].live_bytes());
  };
  belay::launch(belay::host::world{1}, body);
  belay::launch_options small;
  small.budget[belay::tier::device] = 3000;
  CHECK_THROWS_AS(belay::launch(belay::host::world{1}, body, small), belay::plan_refused);
}
