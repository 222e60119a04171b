// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A frozen base model fills every device at the start: DeepSpeed's issue 6737. It was whole on each rank before
// anything was divided, and freezing changed nothing. Here a model of four times a rank's budget, three quarters of it
// frozen, is born divided. That a frozen gradient does not compile: tests/compile_fail/frozen_*.cpp. See
// docs/explanation/field_failures/frozen_base_model.md.
#include "failures/support/frozen_base_model.hpp"

#include <doctest/doctest.h>

#include <cstddef>

#include "failures/support/on_host.hpp"

using namespace frozen_base_model;

namespace {

constexpr sizes of;
constexpr std::size_t budget_bytes = of.model_bytes() / 4;
const failures::on_host on_ranks{static_cast<int>(of.ranks)};

}  // namespace

TEST_CASE("a model of four times the budget, most of it frozen, starts and trains within it") {
  found out;
  train<3>(on_ranks, of, out, budget_bytes);
  CHECK(out.peak == out.planned);
  CHECK(out.peak <= budget_bytes);
  // Shards of values, of gradients and of two moments; a shard is even within one unit of 4096 elements a kind.
  constexpr std::size_t shards = (of.model_bytes() + 3 * of.trained_layers * of.layer_bytes()) / of.ranks;
  CHECK(out.peak_at_start <= shards + (std::size_t{64} << 10U));
  CHECK(out.losses.size() == 3);
  CHECK(out.losses.back() < out.losses.front());
  CHECK(!out.frozen_changed);
  CHECK(out.trained_changed);

  SUBCASE("and is refused before anything runs where the budget is one byte short") {
    found none;
    CHECK_THROWS_AS(train<3>(on_ranks, of, none, out.planned - 1), belay::plan_refused);
    CHECK(none.bodies == 0);
  }
}

TEST_CASE("whole on every rank, as it was there, it does not fit") {
  found none;
  CHECK_THROWS_AS(train<2>(on_ranks, of, none, budget_bytes), belay::plan_refused);
  CHECK(none.bodies == 0);
}
