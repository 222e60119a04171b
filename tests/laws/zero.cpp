// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks divide changes no number: optimizer state, gradients and parameters, on any mesh, with or without
// recompute, under every stream policy.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "laws/support/run.hpp"
#include "test_length.hpp"

using namespace laws;
using belay::axes;
using belay::reshard_when;
using belay::stream_choice;
using belay::stream_policy;
using belay::zero_stage;

namespace {

const uneven_text source(small_run().model.vocab);

// The mesh, what is recomputed, and how streams run: every pair of two of them occurs.
struct setting {
  axes mesh;
  recompute_kind recompute;
  stream_choice streams;
};
const setting settings[] = {
    {{1, 2, 1, 1}, recompute_kind::none, {}},
    {{1, 3, 1, 1}, recompute_kind::full, {stream_policy::queued, 0}},
    {{1, 4, 1, 1}, recompute_kind::none, {stream_policy::adversarial, 0}},
    {{2, 2, 1, 1}, recompute_kind::selective, {stream_policy::adversarial, 1}},
    {{2, 3, 1, 1}, recompute_kind::none, {stream_policy::queued, 0}},
    {{1, 1, 2, 1}, recompute_kind::full, {}},
    {{1, 2, 2, 1}, recompute_kind::selective, {stream_policy::queued, 0}},
    {{2, 1, 2, 1}, recompute_kind::none, {}},
    {{1, 3, 2, 1}, recompute_kind::full, {stream_policy::adversarial, 3}},
    {{2, 2, 2, 1}, recompute_kind::full, {stream_policy::queued, 0}},
};

options run_of(const setting& one, zero_stage stage) {
  options run = small_run();
  run.mesh = one.mesh;
  run.recompute = one.recompute;
  run.streams = one.streams;
  run.zero = stage;
  return run;
}

// The gradients of the first two steps, and then the curve.
void check_equal(const record& one_rank, const record& got) {
  REQUIRE(got.gradients.size() == one_rank.gradients.size());
  for (std::size_t step = 0; step < 2; ++step) {
    const difference found = compare(one_rank.gradients[step], got.gradients[step]);
    INFO(found.where);
    CHECK(found.worst <= 1e-5);
  }
  for (std::size_t step = 0; step < got.losses.size(); ++step)
    CHECK(got.losses[step] == doctest::Approx(one_rank.losses[step]).epsilon(1e-6));
}

}  // namespace

TEST_CASE("divided gradients and parameters train as one rank does, and alike to the bit") {
  const record one_rank = train<float>(small_run(), source);
  for (const setting& one : settings) {
    INFO(one.mesh.text() << ", recompute " << static_cast<int>(one.recompute) << ", streams "
                         << name(one.streams.policy) << " " << one.streams.seed);
    const record second = train<float>(run_of(one, zero_stage::gradients), source);
    check_equal(one_rank, second);
    const record third = train<float>(run_of(one, zero_stage::parameters), source);
    CHECK(compare(second, third).worst == 0);
    if (one.mesh.data == 2) {  // what is kept until the step ends is the same
      options run = run_of(one, zero_stage::parameters);
      run.reshard = reshard_when::after_step;
      CHECK(compare(second, train<float>(run, source)).worst == 0);
    }
  }
}

TEST_CASE("neither pipelines, nor recompute, nor streams change a bit") {
  const setting plain{{1, 2, 1, 1}, recompute_kind::none, {}};
  for (const zero_stage stage : {zero_stage::gradients, zero_stage::parameters}) {
    const record expected = train<float>(run_of(plain, stage), source);
    for (const setting& one :
         {setting{{1, 2, 1, 1}, recompute_kind::full, {}}, setting{{2, 2, 1, 1}, recompute_kind::none, {}},
          setting{{1, 2, 1, 1}, recompute_kind::selective, {}},
          setting{{2, 2, 1, 1}, recompute_kind::selective, {stream_policy::adversarial, 0}},
          setting{{4, 2, 1, 1}, recompute_kind::full, {stream_policy::queued, 0}},
          setting{{1, 2, 1, 1}, recompute_kind::none, {stream_policy::adversarial, 4}}}) {
      INFO(one.mesh.text());
      options run = run_of(one, stage);
      run.schedule = one.mesh.pipeline == 4 ? schedule_kind::one_f_one_b : schedule_kind::gpipe;
      CHECK(compare(expected, train<float>(run, source)).worst == 0);
    }
  }
}

TEST_CASE("shard groups replicate their shares, and train as one rank does") {
  const record one_rank = train<float>(small_run(), source);
  const struct {
    axes mesh;
    recompute_kind recompute;
    stream_choice streams;
  } grouped[] = {
      {{.data = 4, .shard_group = 2}, recompute_kind::none, {stream_policy::adversarial, 2}},
      {{.data = 2, .expert = 2, .shard_group = 1}, recompute_kind::full, {stream_policy::queued, 0}},
      {{.data = 4, .expert = 2, .shard_group = 2}, recompute_kind::selective, {stream_policy::adversarial, 5}},
      {{.pipeline = 2, .data = 4, .shard_group = 2}, recompute_kind::none, {}},
      {{.data = 3, .shard_group = 1}, recompute_kind::none, {}},
  };
  for (const auto& [mesh, recompute, streams] : grouped) {
    INFO(mesh.text());
    const setting one{mesh, recompute, streams};
    check_equal(one_rank, train<float>(run_of(one, zero_stage::optimizer_state), source));
    const record second = train<float>(run_of(one, zero_stage::gradients), source);
    check_equal(one_rank, second);
    CHECK(compare(second, train<float>(run_of(one, zero_stage::parameters), source)).worst == 0);
  }
}

TEST_CASE("in bf16 too: what ranks send is rounded once in every micro-batch") {
  const setting how{{1, 2, 2, 1}, recompute_kind::full, {stream_policy::queued, 0}};
  const record second = train<belay::bf16>(run_of(how, zero_stage::gradients), source);
  CHECK(compare(second, train<belay::bf16>(run_of(how, zero_stage::parameters), source)).worst == 0);
  const record whole = train<belay::bf16>(run_of(how, zero_stage::optimizer_state), source);
  for (std::size_t step = 0; step < 3; ++step)
    CHECK(second.losses[step] == doctest::Approx(whole.losses[step]).epsilon(2e-3));
}

// Of the order of sums only data and expert ranks are part, and whether ranks or micro-batches are added first.
TEST_CASE("in a soak: every stage, recompute, mesh and policy") {
  if (!is_soak()) return;
  const record one_rank = train<float>(small_run(), source);
  for (const int dp : {1, 2, 3, 4})
    for (const int ep : {1, 2}) {
      record micro_batches_first, ranks_first;
      for (const int pp : {1, 2})
        for (const auto recompute : {recompute_kind::none, recompute_kind::selective, recompute_kind::full})
          for (const stream_choice& streams : {stream_choice{}, stream_choice{stream_policy::queued, 0},
                                               stream_choice{stream_policy::adversarial, std::uint64_t(dp * 7 + pp)}})
            for (const zero_stage stage :
                 {zero_stage::none, zero_stage::optimizer_state, zero_stage::gradients, zero_stage::parameters}) {
              const setting one{{pp, dp, ep, 1}, recompute, streams};
              INFO(one.mesh.text() << ", recompute " << static_cast<int>(recompute) << ", streams "
                                   << name(streams.policy) << ", zero " << static_cast<int>(stage));
              const record got = train<float>(run_of(one, stage), source);
              check_equal(one_rank, got);
              record& expected = stage >= zero_stage::gradients ? ranks_first : micro_batches_first;
              if (expected.losses.empty()) expected = got;
              CHECK(compare(expected, got).worst == 0);
            }
    }
}

TEST_CASE("selective recompute keeps less than all and more than layers' outputs, changes no bit, and is planned") {
  std::vector<std::size_t> kept;
  record all;
  for (const recompute_kind recompute : {recompute_kind::none, recompute_kind::selective, recompute_kind::full}) {
    options run = small_run();
    run.mesh = {2, 1, 2, 1};
    run.recompute = recompute;
    const auto body = [&](auto& rank, auto& self) {
      trainer<float, std::remove_reference_t<decltype(rank)>, std::remove_reference_t<decltype(self)>> trained{
          run, rank, self, source};
      for (const std::size_t step : self.steps(2)) static_cast<void>(trained.train(step));
      if (!self.rehearsing())
        CHECK(self.meters()[belay::tier::device].peak_bytes() == self.planned().peak_bytes(belay::tier::device));
    };
    const belay::rehearsal_result planned = belay::rehearse(4, body);
    for (const auto& item : planned.plan.ranks()[0].items())
      if (item.purpose == "activations") kept.push_back(item.bytes);
    launch(run, body);
    const record got = train<float>(run, source);
    if (recompute == recompute_kind::none) all = got;
    CHECK(compare(all, got).worst == 0);
  }
  REQUIRE(kept.size() == 3);
  CHECK(kept[1] < kept[0]);
  CHECK(kept[2] < kept[1]);
}

TEST_CASE("a share that is reduced twice, or by one rank alone, does not pass") {
  const record one_rank = train<float>(small_run(), source);
  const setting plain{{1, 2, 1, 1}, recompute_kind::none, {}};
  const auto doubled = [](const std::string& name, bool, std::span<float> gradient) {
    if (name == "lm_head.weight")
      for (float& each : gradient) each *= 2;
  };
  const record wrong = train<float>(run_of(plain, zero_stage::gradients), source, doubled);
  CHECK(compare(one_rank.gradients[0], wrong.gradients[0]).worst > 1e-2);
}
