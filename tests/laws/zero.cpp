// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks divide changes no number: optimizer state, gradients and parameters, on any mesh, with or without
// recompute, under every stream policy.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "belay/parallel/lists_parameters.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
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

// The mesh, what is recomputed, how streams run, and a stage that divides neither gradients nor parameters. Each of
// them runs with ZeRO 2 and 3 too, so every pair of two values meets: of stage, recompute, pp, dp, ep and policy.
struct setting {
  axes mesh;
  recompute_kind recompute;
  stream_choice streams;
  zero_stage lower = zero_stage::optimizer_state;
};
constexpr setting settings[] = {
    {{1, 1, 2, 1}, recompute_kind::none, {}, zero_stage::none},
    {{2, 1, 1, 1}, recompute_kind::selective, {stream_policy::queued, 0}},
    {{1, 1, 2, 1}, recompute_kind::full, {stream_policy::adversarial, 3}, zero_stage::none},
    {{2, 2, 2, 1}, recompute_kind::none, {stream_policy::queued, 0}},
    {{1, 2, 1, 1}, recompute_kind::selective, {stream_policy::adversarial, 1}, zero_stage::none},
    {{1, 2, 2, 1}, recompute_kind::full, {}},
    {{2, 3, 1, 1}, recompute_kind::none, {stream_policy::adversarial, 0}, zero_stage::none},
    {{1, 3, 2, 1}, recompute_kind::selective, {}},
    {{2, 3, 1, 1}, recompute_kind::full, {stream_policy::queued, 0}, zero_stage::none},
    {{2, 4, 1, 1}, recompute_kind::none, {}},
    {{1, 4, 2, 1}, recompute_kind::selective, {stream_policy::queued, 0}, zero_stage::none},
    {{1, 4, 1, 1}, recompute_kind::full, {stream_policy::adversarial, 2}},
};

// By column: how many values it has, and which of them a setting has.
constexpr std::array<int, 6> column_values = {2, 4, 2, 3, 3, 2};
constexpr std::array<int, 6> columns_of(const setting& one) {
  return {one.mesh.pipeline - 1,
          one.mesh.data - 1,
          one.mesh.expert - 1,
          static_cast<int>(one.recompute),
          static_cast<int>(one.streams.policy),
          static_cast<int>(one.lower)};
}
constexpr bool every_pair_meets(std::span<const setting> all) {
  for (std::size_t a = 0; a < column_values.size(); ++a)
    for (std::size_t b = a + 1; b < column_values.size(); ++b)
      for (int x = 0; x < column_values[a]; ++x)
        for (int y = 0; y < column_values[b]; ++y)
          if (std::ranges::none_of(all, [&](const setting& one) {
                const auto columns = columns_of(one);
                return columns[a] == x && columns[b] == y;
              }))
            return false;
  return true;
}
static_assert(every_pair_meets(settings), "a pair of two values is in no setting: add one that has it");
static_assert(!every_pair_meets(std::span(settings).first(std::size(settings) - 1)));

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

// A model beside which 64 KiB are little; it is only rehearsed.
options large_run(const axes& mesh, zero_stage stage, std::size_t whole_below) {
  options run = small_run();
  run.mesh = mesh;
  run.zero = stage;
  run.whole_below = whole_below;
  run.micro_batches = 4;
  run.bucket_bytes = std::size_t{1} << 20;
  run.model.vocab = 2048;
  run.model.hidden = 256;
  run.model.expert_width = 512;
  run.model.heads = 4;
  run.model.head_dim = 64;
  return run;
}

// The bytes of values, gradients and optimizer state that the formula of a stage gives one rank: what its ranks divide
// they divide evenly. Of bf16 gradients are float, and the state has a master copy. A checked build reduces whole
// gradients in a second buffer, to find those that change afterwards. Parameters below `whole_below` bytes are whole.
template <class T>
struct stage_formula {
  static constexpr std::size_t of_values = sizeof(T), of_gradients = sizeof(belay::compute_type_t<T>),
                               of_state = belay::adamw_state_parts<T> * of_gradients;
  std::size_t elements[2][2] = {};  // of one rank's part of the model: dense or of experts; large or small
  std::size_t largest = 0;          // of one parameter
  std::map<std::size_t, std::size_t> of_layer{};  // by its number

  void add(const options& run, const auto& parameter, std::size_t layer) {
    const std::size_t own = parameter.local_size();
    elements[is_expert(parameter) ? 1 : 0][own * sizeof(T) < run.whole_below ? 1 : 0] += own;
    largest = std::max(largest, own);
    of_layer[layer] += own;
  }
  [[nodiscard]] std::size_t bytes(const options& run, zero_stage stage) const {
    std::size_t all = 0;
    for (const int expert : {0, 1})
      for (const int small : {0, 1}) {
        const std::size_t whole = elements[expert][small];
        const auto ranks = static_cast<std::size_t>(run.mesh.shards() * (expert != 0 ? 1 : run.mesh.expert));
        const std::size_t shard = (whole + ranks - 1) / ranks;
        const zero_stage divided = small != 0 ? std::min(stage, zero_stage::optimizer_state) : stage;
        const bool twice = divided < zero_stage::gradients && ranks > 1 && belay::checked(belay::check_level::local);
        all += (divided >= zero_stage::parameters ? shard : whole) * of_values;
        all += (divided >= zero_stage::gradients ? shard : whole) * of_gradients * (twice ? 2 : 1);
        all += (divided >= zero_stage::optimizer_state ? shard : whole) * of_state;
      }
    return all;
  }
  [[nodiscard]] std::size_t bucket(const options& run) const {
    return std::max(run.bucket_bytes, largest * of_gradients);
  }
  // A bucket that is filled, with all others of its layer, which are complete when its backward is; one that is reduced
  // meanwhile; and what is lost to cuts between chunks and to alignment.
  [[nodiscard]] std::size_t beside(const options& run) const {
    std::size_t layer = 0;
    for (const auto& each : of_layer) layer = std::max(layer, each.second * of_gradients);
    return std::max(layer, bucket(run)) + bucket(run) + (std::size_t{64} << 10U);
  }
};

template <class T>
void check_state_bytes(const options& run) {
  const std::string_view of_state[] = {"parameters", "gradients", "reductions", "gradient buckets", "optimizer state"};
  const std::string_view others[] = {"findings",       "activations",   "gathered parameters",
                                     "expert windows", "gradient norm", "workspace of products",
                                     "batch",          "report",        "positions"};
  const auto ranks = static_cast<int>(run.mesh.ranks());
  for (int number = 0; number < ranks; ++number) {
    stage_formula<T> formula;
    const auto body = [&](auto& rank, auto& self) {
      trainer<T, std::remove_reference_t<decltype(self)>> trained{run, rank, self, source};
      formula = {};
      const belay::parameter_layers layers(trained.model());
      trained.model().for_each_parameter(
          [&](const auto& parameter) { formula.add(run, parameter, layers.of(parameter)); });
      for (const std::size_t step : self.steps(1)) static_cast<void>(trained.train(step));
    };
    const belay::rank_rehearsal rehearsed(number, ranks, body, 0, belay::where::current());
    const belay::planned_run own = rehearsed.leased_by(number);
    std::size_t state = 0;
    for (const belay::plan_item& item : own.plan.items()) {
      if (std::ranges::count(of_state, item.purpose) > 0)
        state += item.bytes;
      else if (item.purpose == "gradients on the wire")  // of bf16: what is sent of a bucket, and what is received
        CHECK(item.bytes <= formula.bucket(run) + (std::size_t{64} << 10U));
      else
        CHECK_MESSAGE(std::ranges::count(others, item.purpose) > 0, item.purpose);
    }
    CAPTURE(number);
    CHECK(state <= formula.bytes(run, run.zero) + formula.beside(run));
    // What the next stage divides is not divided. A release has gradients once: two buckets may be more than they are.
    const std::size_t buckets = belay::checked(belay::check_level::local) ? formula.beside(run) : 0;
    if (run.zero < zero_stage::parameters)
      CHECK(state > formula.bytes(run, static_cast<zero_stage>(static_cast<int>(run.zero) + 1)) + buckets);
  }
}

}  // namespace

TEST_CASE("state takes the bytes of its stage's formula, two buckets and 64 KiB; all else is itemised") {
  for (const zero_stage stage :
       {zero_stage::none, zero_stage::optimizer_state, zero_stage::gradients, zero_stage::parameters})
    for (const axes& mesh : {axes{.data = 4}, axes{.pipeline = 2, .data = 2, .expert = 2},
                             axes{.data = 4, .expert = 2, .shard_group = 2}}) {
      if (stage == zero_stage::none && mesh.replicates_shards()) continue;
      INFO(mesh.text() << ", zero " << static_cast<int>(stage));
      for (const std::size_t whole_below : {std::size_t{0}, std::size_t{1} << 18U}) {
        if (whole_below > 0 && stage < zero_stage::gradients) continue;
        check_state_bytes<float>(large_run(mesh, stage, whole_below));
        check_state_bytes<belay::bf16>(large_run(mesh, stage, whole_below));
      }
    }
}

TEST_CASE("divided gradients and parameters train as one rank does, and alike to the bit") {
  const record one_rank = train<float>(small_run(), source);
  for (const setting& one : settings) {
    if (only_a_sample() && (&one - settings) % 3 != 2) continue;
    INFO(one.mesh.text() << ", recompute " << static_cast<int>(one.recompute) << ", streams "
                         << name(one.streams.policy) << " " << one.streams.seed);
    check_equal(one_rank, train<float>(run_of(one, one.lower), source));
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
      run.schedule = one.mesh.pipeline == 4 ? "1f1b" : "gpipe";
      CHECK(compare(expected, train<float>(run, source)).worst == 0);
    }
  }
}

TEST_CASE("shard groups replicate their shards, and train as one rank does") {
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
    if (only_a_sample() && streams.policy != stream_policy::adversarial) continue;
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
      trainer<float, std::remove_reference_t<decltype(self)>> trained{run, rank, self, source};
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

TEST_CASE("a shard that is reduced twice, or by one rank alone, does not pass") {
  const record one_rank = train<float>(small_run(), source);
  const setting plain{{1, 2, 1, 1}, recompute_kind::none, {}};
  const auto doubled = [](const std::string& name, bool, std::span<float> gradient) {
    if (name == "lm_head.weight")
      for (float& each : gradient) each *= 2;
  };
  const record wrong = train<float>(run_of(plain, zero_stage::gradients), source, doubled);
  CHECK(compare(one_rank.gradients[0], wrong.gradients[0]).worst > 1e-2);
}
