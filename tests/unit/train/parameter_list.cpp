// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/parameter_list.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
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
