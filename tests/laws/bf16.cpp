// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Training in bf16 beside training in float: gradients within the rounding of what is kept, the same loss after 200
// steps, and the same bits wherever the order of sums is the same.
//
// A token that two experts suit alike may go to the other one when it is rounded, and its gradients go with it. So the
// first gradients are compared where every token visits every expert; the losses also where it visits two of four.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "laws/support/run.hpp"

using namespace laws;
using belay::bf16;

namespace {

// bf16 rounds to 2^-9 of a number; each layer rounds what it keeps a few times on the way up and down.
constexpr double bound = 0x1p-7;

options every_expert() {
  options run = small_run();
  run.model.experts_per_token = run.model.experts;
  run.steps = 1;
  return run;
}

double norm_of(const std::vector<double>& values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

// All gradients as one vector: |a - b| / |a|.
double apart(const tensors& a, const tensors& b) {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double d = values[i] - b.at(name)[i];
      difference += d * d;
    }
    norm += norm_of(values) * norm_of(values);
  }
  return std::sqrt(difference / norm);
}

void check_first_gradients(const record& expected, const record& got, double of_a_tensor = bound) {
  REQUIRE(expected.gradients[0].size() == got.gradients[0].size());
  for (const auto& [name, values] : expected.gradients[0]) {
    const double differs = compare(tensors{{name, values}}, {{name, got.gradients[0].at(name)}}).worst;
    INFO(name << " differs by " << differs);
    CHECK(differs <= of_a_tensor);
  }
  CHECK(apart(expected.gradients[0], got.gradients[0]) <= bound);
  CHECK(std::abs(expected.losses[0] - got.losses[0]) <= 1e-3 * expected.losses[0]);
}

double end_of(const std::vector<double>& losses) { return std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10; }

}  // namespace

TEST_CASE("the first gradients are those of float, but for what bf16 rounds") {
  const options run = every_expert();
  const uneven_text source(run.model.vocab);
  const record expected = train<float>(run, source, nullptr, beginning::rounded);
  const record got = train<bf16>(run, source);
  check_first_gradients(expected, got);
  CHECK(compare(expected.gradients[0], got.gradients[0]).worst > 1e-4);  // they were rounded
}

TEST_CASE("and with other first values, where a tensor may differ by twice as much") {
  options run = every_expert();
  const uneven_text source(run.model.vocab);
  for (run.seed = 2; run.seed <= 13; ++run.seed) {
    INFO("seed " << run.seed);
    check_first_gradients(train<float>(run, source, nullptr, beginning::rounded), train<bf16>(run, source), 2 * bound);
  }
}

TEST_CASE("and not those of a gradient that is scaled twice, or lacks a micro-batch") {
  const options run = every_expert();
  const uneven_text source(run.model.vocab);
  const record expected = train<float>(run, source, nullptr, beginning::rounded);
  const auto shrunk = [](const std::string& name, bool, std::span<float> gradient) {
    if (name != "lm_head.weight") return;
    for (float& g : gradient) g *= 11.0F / 12;
  };
  CHECK(compare(expected.gradients[0], train<bf16>(run, source, shrunk).gradients[0]).worst > 2 * bound);
}

TEST_CASE("any mesh is within the same bounds, and the same bits where it rounds in the same places") {
  const options base = every_expert();
  const uneven_text source(base.model.vocab);
  const record single = train<float>(base, source, nullptr, beginning::rounded);
  for (int pp : {1, 2}) {
    for (int ep : {1, 2, 4}) {
      for (int dp : {1, 2, 3}) {
        if (pp * ep * dp > 8) continue;
        options run = base;
        run.mesh = {pp, dp, ep, 1};
        const record reference = train<bf16>(run, source);
        INFO(run.mesh.text());
        check_first_gradients(single, reference);
        run.zero = belay::zero_stage::optimizer_state;
        run.recompute = recompute_kind::full;
        run.schedule = "1f1b";
        CHECK(compare(reference, train<bf16>(run, source)).worst == 0);
      }
    }
  }
}

// Gradients go over the wire in bf16 once a micro-batch, and are added in float.
TEST_CASE("divided gradients and parameters are within the same bounds, and alike to the bit") {
  const options base = every_expert();
  const uneven_text source(base.model.vocab);
  const record single = train<float>(base, source, nullptr, beginning::rounded);
  for (const belay::axes& mesh : {belay::axes{1, 2, 1, 1}, belay::axes{1, 3, 1, 1}, belay::axes{2, 2, 2, 1}}) {
    options run = base;
    run.mesh = mesh;
    run.zero = belay::zero_stage::gradients;
    INFO(run.mesh.text());
    const record second = train<bf16>(run, source);
    check_first_gradients(single, second);
    run.zero = belay::zero_stage::parameters;
    run.recompute = recompute_kind::full;
    run.streams = {belay::stream_policy::queued, 0};
    CHECK(compare(second, train<bf16>(run, source)).worst == 0);
  }
}

// Also where a replica group has one rank, which sends nothing: experts of one data rank, or all of a mesh of one rank.
TEST_CASE("gradients in a lower tier have the bits of those on the device") {
  const options base = every_expert();
  const uneven_text source(base.model.vocab);
  for (const belay::axes& mesh : {belay::axes{1, 1, 1, 1}, belay::axes{2, 1, 2, 1}, belay::axes{1, 2, 1, 1}}) {
    for (const auto zero : {belay::zero_stage::gradients, belay::zero_stage::parameters}) {
      options run = base;
      run.steps = 2;
      run.mesh = mesh;
      run.zero = zero;
      INFO(run.mesh.text());
      const record resident = train<bf16>(run, source);
      run.gradient_tier = belay::tier::host;
      CHECK(compare(resident, train<bf16>(run, source)).worst == 0);
    }
  }
}

TEST_CASE("and whatever the policy of the streams") {
  options run = small_run();
  run.mesh = {2, 2, 2, 1};
  run.zero = belay::zero_stage::optimizer_state;
  const uneven_text source(run.model.vocab);
  const record expected = train<bf16>(run, source);
  run.streams = {belay::stream_policy::queued, 0};
  CHECK(compare(expected, train<bf16>(run, source)).worst == 0);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    run.streams = {belay::stream_policy::adversarial, seed};
    CHECK(compare(expected, train<bf16>(run, source)).worst == 0);
  }
}

namespace {

// Bytes of all operations of a kind that all ranks have called or started in a short run, as their flight recorders
// know them.
template <class T>
std::map<belay::operation, std::size_t> bytes_of_operations(options run) {
  run.steps = 2;
  const uneven_text source(run.model.vocab);
  std::mutex lock;
  std::map<belay::operation, std::size_t> out;
  launch(run, [&](auto& rank, auto& self) {
    trainer<T, std::remove_reference_t<decltype(self)>> trained{run, rank, self, source};
    for (const std::size_t step : self.steps(run.steps)) static_cast<void>(trained.train(step));
    if (const auto* const thread = rank.template backend<belay::host::rank>(); thread != nullptr) {
      const std::lock_guard guard(lock);
      for (const belay::lane which : {belay::lane::caller, belay::lane::stream}) {
        const auto& recorder = thread->state()->recorder(rank.number(), which);
        REQUIRE(recorder.count() <= recorder.capacity());  // none is forgotten
        for (std::uint64_t i = 0; i < recorder.count(); ++i) out[recorder[i].what] += recorder[i].bytes;
      }
    }
  });
  return out;
}

}  // namespace

TEST_CASE("pipelines and an optimizer's gathers send half the bytes") {
  options run = small_run();
  run.mesh = {2, 2, 1, 1};
  run.zero = belay::zero_stage::optimizer_state;
  auto wide = bytes_of_operations<float>(run), narrow = bytes_of_operations<bf16>(run);
  for (const auto what : {belay::operation::exchange, belay::operation::all_gather_v}) {
    INFO(name(what));
    CHECK(wide[what] > 0);
    CHECK(narrow[what] == wide[what] / 2);
  }
}

TEST_CASE("200 steps end at the same loss") {
  options run = small_run();
  run.steps = only_a_sample() ? 40 : 200;
  run.micro_batches = 4;
  run.learning_rate = 1e-3;  // at three times that trainings part ways, and end with less or more
  const uneven_text source(run.model.vocab, uneven_text::endings::equal);
  const record expected = train<float>(run, source);
  const auto expect_same_loss = [&](const record& got) {
    INFO(end_of(got.losses) << " beside " << end_of(expected.losses));
    CHECK(std::abs(end_of(got.losses) - end_of(expected.losses)) <= 0.02 * end_of(expected.losses));
  };
  CHECK(end_of(expected.losses) < 0.9 * expected.losses.front());
  expect_same_loss(train<bf16>(run, source));
  run.mesh = {1, 2, 2, 1};
  run.zero = belay::zero_stage::optimizer_state;
  expect_same_loss(train<bf16>(run, source));
}
