// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer that ends and goes on from its checkpoint trains as one that does not end: on the same mesh to the bit, on
// any other within the bounds of the other laws.
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "laws/support/run.hpp"
#include "unit/train/support/directory.hpp"

using namespace laws;
using belay::axes;
using belay::stream_policy;
using belay::zero_stage;

namespace {

const uneven_text source(small_run().model.vocab);

using train_bench::directory;

struct trained_steps {
  std::size_t from = 0;
  std::vector<double> losses, norms;
  tensors weights;
};

// Steps up to `steps`, from the newest checkpoint where there is one.
template <class T>
trained_steps train_on(options run, const std::string& folder, std::size_t steps) {
  run.steps = steps;
  run.checkpoint = {.folder = folder, .every = 2, .keep = 1, .from = belay::resume_from::newest};
  trained_steps out;
  record final_state;
  std::mutex lock;
  laws::launch(run, [&](auto& rank, auto& self) {
    using trainer_type = trainer<T, std::remove_reference_t<decltype(self)>>;
    trainer_type trained{run, rank, self, source};
    const belay::resumed_run from = trained.checkpoints().open(run.checkpoint.from);
    for (const std::size_t step : self.steps(run.steps, from.step)) {
      const auto result = trained.train(step);
      if (!result) continue;
      CHECK(!trained.checkpoints().after(step));
      if (rank.number() != 0 || self.rehearsing()) continue;
      out.losses.push_back(result->loss);
      out.norms.push_back(result->grad_norm);
    }
    trained.checkpoints().close();
    if (!self.rehearsing()) recorder<T, trainer_type>(final_state, lock, nullptr).take_weights(trained);
    if (rank.number() == 0 && !self.rehearsing()) out.from = from.step;
  });
  out.weights = std::move(final_state.weights);
  return out;
}

struct setting {
  axes mesh;
  zero_stage zero;
  recompute_kind recompute;
  belay::stream_choice streams;
};
// Every pair of a stage, a kind of recompute and a stream policy, over meshes of all axes.
const setting settings[] = {
    {{1, 1, 1, 1}, zero_stage::none, recompute_kind::none, {}},
    {{1, 2, 1, 1}, zero_stage::optimizer_state, recompute_kind::full, {stream_policy::queued, 0}},
    {{1, 3, 1, 1}, zero_stage::gradients, recompute_kind::selective, {stream_policy::adversarial, 5}},
    {{1, 4, 1, 1}, zero_stage::parameters, recompute_kind::none, {stream_policy::queued, 0}},
    {{2, 1, 2, 1}, zero_stage::none, recompute_kind::full, {stream_policy::adversarial, 6}},
    {{2, 2, 1, 1}, zero_stage::parameters, recompute_kind::full, {}},
    {{1, 2, 2, 1}, zero_stage::gradients, recompute_kind::none, {}},
    {{1, 1, 4, 1}, zero_stage::optimizer_state, recompute_kind::selective, {stream_policy::adversarial, 7}},
    {{2, 2, 2, 1}, zero_stage::parameters, recompute_kind::selective, {stream_policy::queued, 0}},
    {{1, 4, 1, 1, 2}, zero_stage::parameters, recompute_kind::none, {stream_policy::adversarial, 8}},
    {{1, 4, 1, 1, 2}, zero_stage::optimizer_state, recompute_kind::full, {}},
};
options run_of(const setting& one) {
  options run = small_run();
  run.mesh = one.mesh;
  run.zero = one.zero;
  run.recompute = one.recompute;
  run.streams = one.streams;
  return run;
}

constexpr std::size_t before = 2, after = 4;

// Under a sanitizer every fourth setting: ranks, streams and writers are threads in each of them.
bool left_out(std::size_t setting) { return only_a_sample() && setting % 4 != 2; }

}  // namespace

TEST_CASE("on the same mesh the curve has the bits of a run that did not end") {
  for (const setting& one : settings) {
    if (left_out(static_cast<std::size_t>(&one - settings))) continue;
    CAPTURE(one.mesh.text());
    const directory whole, cut;
    const trained_steps expected = train_on<float>(run_of(one), whole.path, after);
    train_on<float>(run_of(one), cut.path, before);
    const trained_steps got = train_on<float>(run_of(one), cut.path, after);
    REQUIRE(got.from == before);
    REQUIRE(got.losses.size() == after - before);
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      CHECK(got.losses[i] == expected.losses[before + i]);
      CHECK(got.norms[i] == expected.norms[before + i]);
    }
    CHECK(compare(expected.weights, got.weights).worst == 0);
  }
}

TEST_CASE("on another mesh, stage and policy it goes on within the bounds of these") {
  constexpr std::size_t count = std::size(settings);
  for (std::size_t i = 0; i < count; ++i) {
    if (left_out(i + 1)) continue;
    const setting &first = settings[i], &second = settings[(i * 5 + 3) % count];
    CAPTURE(first.mesh.text());
    CAPTURE(second.mesh.text());
    const directory whole, cut;
    const trained_steps expected = train_on<float>(run_of(second), whole.path, after);
    train_on<float>(run_of(first), cut.path, before);
    const trained_steps got = train_on<float>(run_of(second), cut.path, after);
    REQUIRE(got.from == before);
    REQUIRE(got.losses.size() == after - before);
    for (std::size_t s = 0; s < got.losses.size(); ++s)
      CHECK(got.losses[s] == doctest::Approx(expected.losses[before + s]).epsilon(1e-6));
    CHECK(compare(expected.weights, got.weights).worst < 1e-4);
  }
}

TEST_CASE("state of the optimizer in a lower tier trains to the bit as in device, and is saved from there") {
  const directory scratch;
  for (const auto lower : {belay::tier::host, belay::tier::pinned, belay::tier::file}) {
    for (const std::size_t which : {1U, 3U, 8U}) {
      if (only_a_sample() && which != 3U) continue;
      options run = run_of(settings[which]);
      CAPTURE(run.mesh.text());
      CAPTURE(belay::name(lower));
      const directory whole, cut;
      const trained_steps expected = train_on<float>(run, whole.path, after);
      run.optimizer_tier = lower;
      if (lower == belay::tier::file) run.tier_folder = scratch.path;
      train_on<float>(run, cut.path, before);
      const trained_steps got = train_on<float>(run, cut.path, after);
      REQUIRE(got.from == before);
      CHECK(got.losses.back() == expected.losses.back());
      CHECK(compare(expected.weights, got.weights).worst == 0);
    }
  }
}

TEST_CASE("state in a file goes on in memory, and state in memory in a file, on another mesh and stage") {
  using belay::tier;
  const directory scratch;
  const auto in = [&](const setting& one, tier its) {
    options run = run_of(one);
    run.optimizer_tier = its;
    if (its == tier::file) run.tier_folder = scratch.path;
    return run;
  };
  const std::pair<std::size_t, std::size_t> pairs[] = {{3, 4}, {1, 9}};
  for (const auto& [one, other] : pairs)
    for (const tier from : {tier::file, tier::pinned}) {
      if (only_a_sample() && (from == tier::file) != (one == 3)) continue;
      const options second = in(settings[other], from == tier::file ? tier::pinned : tier::file);
      CAPTURE(second.mesh.text());
      const directory whole, cut;
      const trained_steps expected = train_on<float>(second, whole.path, after);
      train_on<float>(in(settings[one], from), cut.path, before);
      const trained_steps got = train_on<float>(second, cut.path, after);
      REQUIRE(got.from == before);
      CHECK(got.losses.back() == doctest::Approx(expected.losses.back()).epsilon(1e-6));
      CHECK(compare(expected.weights, got.weights).worst < 1e-4);
    }
}

TEST_CASE("bf16 goes on to the bit, and as fp32 from its masters") {
  setting one{{1, 2, 2, 1}, zero_stage::parameters, recompute_kind::none, {}};
  const directory whole, cut;
  const trained_steps expected = train_on<belay::bf16>(run_of(one), whole.path, after);
  train_on<belay::bf16>(run_of(one), cut.path, before);
  {
    const directory copy;
    std::filesystem::copy(cut.path, copy.path, std::filesystem::copy_options::recursive);
    const trained_steps got = train_on<belay::bf16>(run_of(one), copy.path, after);
    CHECK(got.losses.back() == expected.losses.back());
    CHECK(compare(expected.weights, got.weights).worst == 0);
  }
  const trained_steps wide = train_on<float>(run_of(settings[5]), cut.path, after);
  REQUIRE(wide.from == before);
  CHECK(wide.losses.back() == doctest::Approx(expected.losses.back()).epsilon(1.0 / 128));
}
