// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Steps that are captured as graphs on ranks with a device each, which communicate over NCCL, over a fake of both: they
// have the bits of steps that are not, under a learning rate that changes, with every ZeRO stage; and what fails in a
// launch is an error of the launch.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"
#include "unit/train/support/graph_trainer.hpp"

using fakes::work_order;
using namespace graph_trainer;

namespace {

// Shard groups are two.
int ranks_of(const trial& what) { return what.axes.shard_group == 0 ? 2 : 4; }

record on_host(trial what) {
  what.use = graph_use::none;
  what.state = what.gradients = what.parameters = what.activations = belay::tier::device;
  record out;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks_of(what)),
                                                                  body<float>(what, out));
  return out;
}

// Of rank 1, of which the call fails that it is given: a world copies the policy for each rank in turn.
class failing_nccl : public fakes::nccl_api {
 public:
  struct shared {
    fakes::nccl_injection what = {};
    std::uint64_t launched = 0;  // the last group of calls in a launch
    int copies = 0;
  };
  failing_nccl(fakes::nccl_fabric& fabric, shared& how) : nccl_api(fabric), how_(&how) {}
  failing_nccl(const failing_nccl& other)
      : nccl_api(other.fabric(), other.how_->copies == 1 ? other.how_->what : fakes::nccl_injection{}),
        how_(other.how_),
        rank_(how_->copies++) {}
  ~failing_nccl() {
    for (std::uint64_t k = 0; rank_ == 1 && k < names().size(); ++k)
      if (names()[k] == "launched") how_->launched = k + 1;
  }

 private:
  shared* how_;
  int rank_ = -1;
};

// What a launch over NCCL throws; empty: nothing.
std::string over_nccl(const trial& what, fakes::device_options how, record& out, failing_nccl::shared& failure,
                      std::chrono::duration<double> timeout = std::chrono::seconds(60)) {
  const int ranks = how.devices = ranks_of(what);
  fakes::device_api api(how);
  fakes::nccl_fabric fabric(api);
  std::string thrown;
  try {
    belay::launch(
        belay::nccl::world(api, failing_nccl(fabric, failure), belay::host::world(ranks, {.timeout = timeout}),
                           {.ranks = {.workspace_bytes = 256, .watch_period = std::chrono::milliseconds(5)},
                            .parent_bytes = 1 << 16,
                            .group_bytes = 1 << 12}),
        body<float>(what, out));
  } catch (const belay::error& problem) {
    thrown = problem.what();
  }
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  return thrown;
}
record over_nccl(const trial& what, const fakes::device_options& how) {
  record out;
  failing_nccl::shared none;
  CHECK(over_nccl(what, how, out, none) == "");
  return out;
}
const fakes::device_options every_order[] = {
    {work_order::eager}, {work_order::late}, {work_order::random, 1}, {work_order::random, 2}};

}  // namespace

TEST_CASE("20 steps of which 19 are launches have the bits of eager ones on ranks over NCCL, with every ZeRO stage") {
  for (const auto stage : {belay::zero_stage::none, belay::zero_stage::optimizer_state, belay::zero_stage::gradients,
                           belay::zero_stage::parameters}) {
    CAPTURE(static_cast<int>(stage));
    const trial what{.stage = stage};
    const record expected = on_host(what);
    REQUIRE(expected.losses.size() == what.steps);
    CHECK(expected.losses[5] < expected.losses[0]);
    CHECK(over_nccl({.use = graph_use::none, .stage = stage}, every_order[1]).same_numbers(expected));
    for (const fakes::device_options& how : every_order) {
      const record launched = over_nccl(what, how);
      CHECK(launched.same_numbers(expected));
      CHECK(launched.bodies == 2);
      CHECK(launched.launches == what.steps - 1);
    }
  }
}

TEST_CASE("20 steps of which 19 are launches have the bits of eager ones where shard groups replicate shards") {
  for (const auto stage :
       {belay::zero_stage::optimizer_state, belay::zero_stage::gradients, belay::zero_stage::parameters}) {
    CAPTURE(static_cast<int>(stage));
    const trial what{.stage = stage, .axes = {.shard_group = 2}};
    const record expected = on_host(what);
    REQUIRE(expected.losses.size() == what.steps);
    CHECK(expected.losses[5] < expected.losses[0]);
    CHECK(
        over_nccl({.use = graph_use::none, .stage = stage, .axes = what.axes}, every_order[1]).same_numbers(expected));
    for (const fakes::device_options& how : {every_order[1], every_order[3]}) {
      const record launched = over_nccl(what, how);
      CHECK(launched.same_numbers(expected));
      CHECK(launched.bodies == 2);
      CHECK(launched.launches == what.steps - 1);
    }
  }
}

TEST_CASE("what lies in lower tiers of ranks over NCCL is captured, also where shard groups replicate it") {
  for (const int group : {0, 2})
    for (const auto stage : {belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
      trial what{.stage = stage, .axes = {.shard_group = group}, .state = belay::tier::host};
      what.activations = belay::tier::pinned;
      if (stage == belay::zero_stage::parameters) what.parameters = belay::tier::pinned;
      if (stage == belay::zero_stage::parameters && group == 0) what.gradients = belay::tier::pinned;
      const record expected = on_host(what);
      for (const fakes::device_options& how : {every_order[1], every_order[2]})
        CHECK(over_nccl(what, how).same_numbers(expected));
      what.overflows_in = 7;
      CHECK(over_nccl(what, every_order[1]).same_numbers(expected));
    }
}

TEST_CASE("gradients of a lower tier are not summed over shard groups by NCCL, which is said before the first step") {
  trial what{.stage = belay::zero_stage::gradients, .axes = {.shard_group = 2}};
  what.gradients = belay::tier::pinned;
  record out;
  failing_nccl::shared none;
  CHECK(over_nccl(what, every_order[1], out, none)
            .find("NCCL sums gradients over shard groups in memory of the device") != std::string::npos);
}

TEST_CASE("a step that one rank must replay is run as it is on all, and captured anew; so is one after drop") {
  for (const auto stage : {belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
    const record expected = on_host({.stage = stage});
    for (const fakes::device_options& how : {every_order[1], every_order[2]}) {
      const record replayed = over_nccl({.stage = stage, .overflows_in = 7}, how);
      CHECK(replayed.same_numbers(expected));
      CHECK(replayed.bodies == 4);
      CHECK(replayed.launches == 19);  // 21 tries, of which 2 are not
      const record dropped = over_nccl({.stage = stage, .drops_in = 9}, how);
      CHECK(dropped.same_numbers(expected));
      CHECK(dropped.launches == 18);
    }
  }
}

TEST_CASE("what fails in the launch of a step is what the world throws: it names the graph, and nobody hangs") {
  using failing_way = fakes::nccl_injection::failing_way;
  const trial what{.stage = belay::zero_stage::parameters, .steps = 4};
  failing_nccl::shared looks;
  record out;
  REQUIRE(over_nccl(what, every_order[1], out, looks) == "");
  REQUIRE(looks.launched > 0);
  for (const failing_way how : {failing_way::asynchronous, failing_way::silent}) {
    failing_nccl::shared fails{.what = {looks.launched, how}};
    record told;
    const std::chrono::seconds timeout(how == failing_way::silent ? 2 : 60);  // a slow machine's steps end within
    const std::string thrown = over_nccl(what, every_order[1], told, fails, timeout);
    CAPTURE(thrown);
    CHECK(thrown.find(how == failing_way::silent ? "waits in a graph of " : "injected") != std::string::npos);
  }
}
