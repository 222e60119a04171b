// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures from the field that fill memory, on devices: on one that ranks share, and on one a rank over NCCL, both of
// the host and late on purpose.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "failures/support/frozen_base_model.hpp"
#include "failures/support/offload_phases.hpp"
#include "failures/support/on_fakes.hpp"
#include "failures/support/on_host.hpp"
#include "failures/support/symmetric_experts.hpp"

using namespace failures;

TEST_CASE_TEMPLATE("a model of four times the budget of a device, most of it frozen, starts and trains within it",
                   World, on_one_device, on_device_each) {
  using namespace frozen_base_model;
  constexpr sizes small{.width = 32, .ranks = 10, .frozen_layers = 72, .trained_layers = 8, .steps = 1};
  constexpr std::size_t budget = small.model_bytes() / 4;
  const World ranks{static_cast<int>(small.ranks), {work_order::late}};
  found host, out, whole;
  train<3>(on_host{static_cast<int>(small.ranks)}, small, host, budget);
  // Five communicators are estimated; ranks of one device have two slots of 1024 bytes in eight groups, and 64 KiB.
  constexpr std::size_t beside = std::is_same_v<World, on_device_each> ? 86'208 : 81'920;
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

TEST_CASE_TEMPLATE("cycles of offload and load leave the pinned memory of devices at the bytes of the shards", World,
                   on_one_device, on_device_each) {
  using namespace offload_phases;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const found got = run_cycles<no_buffers>(World{ranks, {work_order::late}}, 20);
    CHECK(got.exact);
    CHECK(got.pinned_first == got.shards + got.ring + got.squares);
    CHECK(got.pinned_last == got.pinned_first);
    CHECK(got.in_device == 0);
    CHECK(got.other_cycles == 0);
    CHECK(got.committed == 2);
    CHECK(got.grown == 0);
    CHECK(got.as_planned);
  }
  const found cached = run_cycles<cached_buffers>(World{2, {work_order::late}}, 10);
  CHECK(cached.pinned_last > cached.pinned_first);
  CHECK(cached.pinned_first != cached.shards + cached.ring + cached.squares);
}
TEST_CASE_TEMPLATE("what a phase forgets on a device is a named, signed difference in the transition's report", World,
                   on_one_device, on_device_each) {
  offload_phases::forget_a_cache(World{2, {work_order::late}}, [](bool holds) { CHECK(holds); });
}

TEST_CASE_TEMPLATE("experts of devices leave their symmetric memory empty with every step and every evaluation", World,
                   on_one_device, on_device_each) {
  using namespace symmetric_experts;
  found host, out;
  train(on_host{2}, {.steps = 8}, host);
  train(World{2, {work_order::late}}, {.steps = 8}, out);
  REQUIRE(out.losses.size() == 8);
  CHECK(out.losses == host.losses);
  CHECK(out.held_out == host.held_out);
  CHECK(out.left == 0);
  CHECK(out.other_live == 0);
  CHECK(out.off_the_plan == 0);
}
TEST_CASE_TEMPLATE("experts of devices that lack room get it: their step comes again and has the bits of the host",
                   World, on_one_device, on_device_each) {
  using namespace symmetric_experts;
  found enough, host;
  train(on_host{2}, {.capacity = room_for_all}, enough);
  train(on_host{2}, {.capacity = 5}, host);
  CHECK(enough.begun == 6);
  CHECK(host.begun > 6);
  CHECK(host.losses == enough.losses);
  for (const fakes::device_options& how : {fakes::device_options{work_order::late}, {work_order::random, 1}}) {
    found out;
    train(World{2, how}, {.capacity = 5}, out);
    CHECK(out.begun == host.begun);
    CHECK(out.room == host.room);
    CHECK(out.losses == host.losses);
    CHECK(out.held_out == host.held_out);
    CHECK(out.left == 0);
    CHECK(out.off_the_plan == 0);
  }
}
TEST_CASE_TEMPLATE("an overflow of experts on a device that nobody turns into a vote commits wrong gradients", World,
                   on_host, on_one_device) {
  using namespace symmetric_experts;
  found enough, out, roomy;
  train(on_host{2}, {}, enough);
  train(World{2}, {.what = slip::untold_overflow}, roomy);
  train(World{2}, {.capacity = 5, .what = slip::untold_overflow}, out);
  CHECK(roomy.losses == enough.losses);
  CHECK(out.begun == 6);  // nothing came again
  CHECK(out.room == 5);
  CHECK(out.losses != enough.losses);
}
TEST_CASE_TEMPLATE("experts whose backward is forgotten on a device are named as on the host, or refused and reclaimed",
                   World, on_host, on_one_device, on_device_each) {
  using namespace symmetric_experts;
  found out;
  std::string said;
  try {
    train(World{2}, {.what = slip::forgotten_backward}, out);
  } catch (const belay::open_obligations& open) {
    said = open.what();
  }
  CHECK(out.losses.empty());
  CHECK(out.left == 0);
  const auto says = [&](const std::string& words) { return said.find(words) != std::string::npos; };
  if constexpr (belay::checked(belay::check_level::local)) {
    CHECK(says("saved activation of layer 1 'moe.1' (micro-batch 2, 1x6x8"));
    CHECK(says("combined tokens of layer 1 'moe.1' (micro-batch 2, 6x8"));
    CHECK(says("symmetric_experts.hpp:" + std::to_string(opening_line)));
    CHECK(says("backward was never called"));
    CHECK_FALSE(says("micro-batch 1"));
    CHECK_FALSE(says("moe.0"));
  } else {
    CHECK(said == "");
    CHECK(out.begun == 6);
    CHECK(out.lost > 0);
    CHECK(out.most_open == 4);  // the activation and its tokens, on both ranks
  }
}
