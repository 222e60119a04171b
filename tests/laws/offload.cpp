// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What lives in a lower tier trains as what lives in the device, to the bit, whatever the set, the tiers, the ZeRO
// stage, the recompute and the streams; and a model that is four times larger than the device's budget trains.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "laws/support/run.hpp"
#include "test_length.hpp"

using namespace laws;
using belay::stream_policy;
using belay::tier;
using belay::zero_stage;

namespace {

struct setting {
  belay::axes mesh;
  zero_stage zero;
  recompute_kind recompute;
  tier optimizer, parameters, gradients;
  belay::stream_choice streams;
};

options run_of(const setting& chosen) {
  options run = small_run();
  run.mesh = chosen.mesh;
  run.steps = 2;
  run.micro_batches = 6;
  run.recompute = chosen.recompute;
  run.zero = chosen.zero;
  return run;
}
void offload(options& run, const setting& chosen) {
  run.optimizer_tier = chosen.optimizer;
  run.parameter_tier = chosen.parameters;
  run.gradient_tier = chosen.gradients;
  run.tier_folder =
      chosen.optimizer == tier::file || chosen.parameters == tier::file || chosen.gradients == tier::file ? "/tmp" : "";
  run.tier_chunk = belay::parameter_chunk;
  run.streams = chosen.streams;
}
std::string text(const setting& chosen) {
  options run;
  offload(run, chosen);
  return chosen.mesh.text() + ", zero " + std::to_string(static_cast<int>(chosen.zero)) + ", recompute " +
         std::to_string(static_cast<int>(chosen.recompute)) + ", " + offload_text(run) + ", " +
         name(chosen.streams.policy) + " " + std::to_string(chosen.streams.seed);
}

// Every pair of two of the settings at least once; all of them in a soak.
std::vector<setting> settings() {
  const belay::axes meshes[] = {{1, 1, 1, 1}, {1, 3, 1, 1}, {2, 1, 2, 1}, {1, 2, 2, 1}};
  const recompute_kind recomputes[] = {recompute_kind::none, recompute_kind::selective, recompute_kind::full};
  const belay::stream_choice streams[] = {{stream_policy::immediate, 0},
                                          {stream_policy::queued, 0},
                                          {stream_policy::adversarial, 0},
                                          {stream_policy::adversarial, 3}};
  const tier of_state[] = {tier::file, tier::pinned, tier::host, tier::device};
  const tier of_parameters[] = {tier::host, tier::pinned, tier::file, tier::device};
  const tier of_gradients[] = {tier::file, tier::pinned, tier::host, tier::device};
  std::vector<setting> out;
  for (std::size_t m = 0; m < 4; ++m)
    for (std::size_t i = 0; i < 16; ++i) {
      const auto zero = static_cast<zero_stage>((3 + i / 4 + m) % 4);
      const tier shares = of_parameters[(i + 2 * (i / 4) + m) % 4], gradients = of_gradients[(i + i / 4 + 3 * m) % 4];
      const auto add = [&](const belay::stream_choice& how, recompute_kind recompute) {
        out.push_back({meshes[m], zero, recompute, of_state[(i + m) % 4],
                       zero == zero_stage::parameters ? shares : tier::device,
                       zero >= zero_stage::gradients ? gradients : tier::device, how});
      };
      if (!is_soak()) {
        add(streams[(i + i / 4 + m) % 4], recomputes[(i + m) % 3]);
        continue;
      }
      for (const belay::stream_choice& how : streams)
        for (const recompute_kind recompute : recomputes) add(how, recompute);
    }
  return out;
}

// What a rank leases at its peaks, and whether these are as planned on all ranks.
struct peaks {
  std::atomic<bool> as_planned = true;
  std::atomic<std::size_t> of[belay::tier_count] = {};
};
void measure(const options& run, const batch_source& source, peaks& out, const belay::budget& limit = {}) {
  belay::launch<model::host_kit>(
      belay::host::world{static_cast<int>(run.mesh.ranks())},
      [&](auto& rank, auto& self) {
        trainer<float, std::remove_reference_t<decltype(rank)>, std::remove_reference_t<decltype(self)>> trained{
            run, rank, self, source};
        for (const std::size_t step : self.steps(run.steps)) static_cast<void>(trained.train(step));
        if (self.rehearsing()) return;
        for (std::size_t t = 0; t < belay::tier_count; ++t) {
          const auto& meter = self.meters()[static_cast<tier>(t)];
          if (meter.peak_bytes() != self.planned().peak_bytes(static_cast<tier>(t))) out.as_planned = false;
          if (rank.number() == 0) out.of[t] = meter.peak_bytes();
        }
      },
      {.budget = limit, .streams = run.streams});
}

}  // namespace

TEST_CASE("what is offloaded trains as what is resident, to the bit") {
  std::size_t number = 0;
  for (const setting& chosen : settings()) {
    if (only_a_sample() && number++ % 4 != 1) continue;
    INFO(text(chosen));
    options run = run_of(chosen);
    const uneven_text source(run.model.vocab);
    const record expected = train<float>(run, source);
    offload(run, chosen);
    const difference apart = compare(expected, train<float>(run, source));
    INFO(apart.where << " differs by " << apart.worst);
    CHECK(apart.worst == 0);
  }
}

TEST_CASE("every tier peaks as planned") {
  for (const setting& chosen :
       {setting{{1, 1, 1, 1}, zero_stage::parameters, {}, tier::file, tier::file, tier::host, {}},
        setting{{1, 2, 2, 1}, zero_stage::parameters, {}, tier::host, tier::host, tier::file, {}},
        setting{{2, 1, 2, 1}, zero_stage::gradients, {}, tier::pinned, tier::device, tier::pinned, {}}}) {
    INFO(text(chosen));
    options run = run_of(chosen);
    offload(run, chosen);
    const uneven_text source(run.model.vocab);
    peaks found;
    measure(run, source, found);
    CHECK(found.as_planned);
  }
}

TEST_CASE("a model four times larger than the device's budget trains, at the same loss") {
  setting all{{1, 2, 1, 1}, zero_stage::parameters, recompute_kind::full, tier::file, tier::file, tier::file, {}};
  options run = run_of(all);
  run.micro_batches = 2;
  run.micro_batch_size = 1;
  run.model.layers = 12;
  run.model.hidden = 32;
  run.model.expert_width = 64;
  const uneven_text source(run.model.vocab);
  const record expected = train<float>(run, source);
  peaks resident, offloaded;
  measure(run, source, resident);
  offload(run, all);
  measure(run, source, offloaded);
  const auto of = [](tier which) { return static_cast<std::size_t>(which); };
  std::size_t model = 0;  // parameters, gradients and two moments, over both ranks
  for (const auto& [name, values] : expected.weights) model += 4 * values.size() * sizeof(float);
  const std::size_t device = offloaded.of[of(tier::device)];
  INFO(model << " bytes of model, " << device << " in the device, " << resident.of[of(tier::device)] << " resident");
  CHECK(model / 4 >= device);
  belay::budget limit;
  limit[tier::device] = device;
  limit[tier::host] = offloaded.of[of(tier::host)];
  CHECK(limit[tier::host] < model / 2);  // too small for the optimizer's state
  peaks again;
  measure(run, source, again, limit);
  CHECK(again.as_planned);
  limit[tier::device] -= 1;
  CHECK_THROWS_AS(measure(run, source, again, limit), belay::plan_refused);
  CHECK(compare(expected, train<float>(run, source)).worst == 0);
}
