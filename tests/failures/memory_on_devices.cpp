// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures from the field that fill memory, on devices: on one that ranks share, and on one a rank over NCCL, both of
// the host and late on purpose.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "failures/support/frozen_base_model.hpp"
#include "failures/support/offload_phases.hpp"
#include "failures/support/on_fakes.hpp"
#include "failures/support/on_host.hpp"

using namespace failures;

TEST_CASE_TEMPLATE("a model of four times the budget of a device, most of it frozen, starts and trains within it",
                   World, on_one_device, on_device_each) {
  using namespace frozen_base_model;
  constexpr sizes small{.width = 32, .ranks = 10, .frozen_layers = 72, .trained_layers = 8, .steps = 1};
  constexpr std::size_t budget = small.model_bytes() / 4;
  const World ranks{static_cast<int>(small.ranks), {work_order::late}};
  found host, out, whole;
  train<3>(on_host{static_cast<int>(small.ranks)}, small, host, budget);
  // What five communicators take is estimated.
  constexpr std::size_t beside = std::is_same_v<World, on_device_each> ? 86'208 : 0;
  train<3>(ranks, small, out, budget + beside);
  CHECK(out.losses == host.losses);
  CHECK(out.peak == out.planned);
  CHECK(out.peak <= budget);
  CHECK(out.peak_at_start <= host.peak_at_start + (std::size_t{16} << 10U));  // a workspace of each stream
  CHECK(!out.frozen_changed);
  CHECK(out.trained_changed);
  CHECK_THROWS_AS(train<2>(ranks, small, whole, budget + beside), belay::plan_refused);
  CHECK(whole.bodies == 0);
  CHECK_THROWS_AS(train<3>(ranks, small, whole, out.planned + beside - 1), belay::plan_refused);
  CHECK(whole.bodies == 0);
}

TEST_CASE_TEMPLATE("cycles of offload and load leave the pinned memory of devices at the bytes of the shares", World,
                   on_one_device, on_device_each) {
  using namespace offload_phases;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const found got = run_cycles<no_buffers>(World{ranks, {work_order::late}}, 20);
    CHECK(got.exact);
    CHECK(got.pinned_first == got.shards + got.ring);
    CHECK(got.pinned_last == got.pinned_first);
    CHECK(got.in_device == 0);
    CHECK(got.other_cycles == 0);
    CHECK(got.committed == 2);
    CHECK(got.grown == 0);
    CHECK(got.as_planned);
  }
  const found cached = run_cycles<cached_buffers>(World{2, {work_order::late}}, 10);
  CHECK(cached.pinned_last > cached.pinned_first);
  CHECK(cached.pinned_first != cached.shards + cached.ring);
}
TEST_CASE_TEMPLATE("what a phase forgets on a device is a named, signed difference in the transition's report", World,
                   on_one_device, on_device_each) {
  offload_phases::forget_a_cache(World{2, {work_order::late}}, [](bool holds) { CHECK(holds); });
}
