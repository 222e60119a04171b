// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What lives in a lower tier trains as what lives in the device, to the bit, whatever the set, the tiers, the ZeRO
// stage, the recompute and the streams; and a model that is four times larger than the device's budget trains.
#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "laws/support/pairwise.hpp"
#include "laws/support/run.hpp"
#include "test_length.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"

using namespace laws;
using belay::stream_policy;
using belay::tier;
using belay::zero_stage;

namespace {

// One of each: a mesh, a ZeRO stage, a recompute, where state, parameters, gradients and activations live, and streams.
using setting = setting_row<8>;
enum column : unsigned { mesh, stage, recompute, optimizer, parameters, gradients, activations, streams };

constexpr belay::axes meshes[] = {{1, 1, 1, 1}, {1, 3, 1, 1}, {2, 1, 2, 1}, {1, 2, 2, 1}};
constexpr belay::stream_choice stream_choices[] = {{stream_policy::immediate, 0},
                                                   {stream_policy::queued, 0},
                                                   {stream_policy::adversarial, 0},
                                                   {stream_policy::adversarial, 3}};

options run_of(const setting& chosen) {
  options run = small_run();
  run.mesh = meshes[chosen[mesh]];
  run.steps = 2;
  run.micro_batches = 6;
  run.recompute = static_cast<recompute_kind>(chosen[recompute]);
  run.zero = static_cast<zero_stage>(chosen[stage]);
  return run;
}
void offload(options& run, const setting& chosen) {
  run.optimizer_tier = static_cast<tier>(chosen[optimizer]);
  run.parameter_tier = static_cast<tier>(chosen[parameters]);
  run.gradient_tier = static_cast<tier>(chosen[gradients]);
  run.activation_tier = static_cast<tier>(chosen[activations]);
  run.tier_folder = offload_text(run).find(":file") != std::string::npos ? "/tmp" : "";
  run.tier_chunk = belay::parameter_chunk;
  run.streams = stream_choices[chosen[streams]];
}
std::string text(const setting& chosen) {
  options run = run_of(chosen);
  offload(run, chosen);
  return run.mesh.text() + ", zero " + std::to_string(chosen[stage]) + ", recompute " +
         std::to_string(chosen[recompute]) + ", " + offload_text(run) + ", " + name(run.streams.policy) + " " +
         std::to_string(run.streams.seed);
}

// All that there can be on these meshes. What no stage divides is nothing that could be offloaded.
std::vector<setting> all_settings() {
  std::vector<setting> out;
  constexpr setting values{4, 4, 3, belay::tier_count, belay::tier_count, belay::tier_count, belay::tier_count, 4};
  for (setting each{};;) {
    const auto divided = static_cast<zero_stage>(each[stage]);
    if ((each[parameters] == 0 || divided == zero_stage::parameters) &&
        (each[gradients] == 0 || divided >= zero_stage::gradients))
      out.push_back(each);
    std::size_t last = each.size();
    while (last > 0 && ++each[last - 1] == values[last - 1]) each[--last] = 0;
    if (last == 0) return out;
  }
}

// Two values of two columns meet at least once. In a soak all settings run, each on one of the meshes in turn;
// sanitizers take the pairs.
std::vector<setting> settings() {
  const std::vector<setting> all = all_settings();
  if (!is_soak() || !tools::heap_is_counted()) return pairwise(all);
  std::vector<setting> out;
  for (const setting& each : all)
    if (std::accumulate(each.begin(), each.end(), 0U) % std::size(meshes) == 0) out.push_back(each);
  return out;
}

}  // namespace

TEST_CASE("the settings have every pair of two values that there can be, and one setting less has not") {
  const std::vector<setting> all = all_settings(), chosen = pairwise(all);
  CHECK(pairs_of(all).count() == 420 - 9 - 6);  // but for those of a stage that divides no parameters, or no gradients
  CHECK(pairs_of(chosen) == pairs_of(all));
  CHECK(chosen.size() < 40);
  CHECK(pairs_of(std::vector<setting>(chosen.begin(), chosen.end() - 1)) != pairs_of(all));
}

TEST_CASE("what is offloaded trains as what is resident, to the bit") {
  std::map<std::array<unsigned, 3>, record> resident;
  std::size_t number = 0;
  for (const setting& chosen : settings()) {
    if (only_a_sample() && number++ % 4 != 1) continue;
    INFO(text(chosen));
    options run = run_of(chosen);
    const uneven_text source(run.model.vocab);
    record& expected = resident[{chosen[mesh], chosen[stage], chosen[recompute]}];
    if (expected.losses.empty()) expected = train<float>(run, source);
    offload(run, chosen);
    const difference apart = compare(expected, train<float>(run, source));
    INFO(apart.where << " differs by " << apart.worst);
    CHECK(apart.worst == 0);
  }
}

// On one rank, whose shards are everything.
TEST_CASE("a model four times larger than the device's budget trains at the same loss") {
  options run = small_run();
  run.zero = zero_stage::parameters;
  run.recompute = recompute_kind::full;
  run.steps = 2;
  run.micro_batches = 2;
  run.micro_batch_size = 1;
  run.model.layers = 12;
  run.model.hidden = 32;
  run.model.expert_width = 64;
  run.tier_chunk = belay::parameter_chunk;
  const uneven_text source(run.model.vocab);
  const record expected = train<float>(run, source);
  std::size_t elements = 0;
  for (const auto& [name, values] : expected.weights) elements += values.size();
  const std::size_t state = 2 * elements * sizeof(float), model = 2 * state;  // with parameters and gradients
  run.budget[tier::device] = model / 4;
  CHECK_THROWS_AS(static_cast<void>(train<float>(run, source)), belay::plan_refused);
  run.parameter_tier = run.gradient_tier = tier::pinned;
  run.optimizer_tier = tier::host;
  CHECK(compare(expected, train<float>(run, source)).worst == 0);
  // Nor has the host room for the optimizer's state, and there is no pinned memory at all.
  run.budget[tier::pinned] = 0;
  run.budget[tier::host] = state / 2;
  run.parameter_tier = run.gradient_tier = tier::file;
  run.tier_folder = "/tmp";
  CHECK_THROWS_AS(static_cast<void>(train<float>(run, source)), belay::plan_refused);
  run.optimizer_tier = tier::file;
  CHECK(compare(expected, train<float>(run, source)).worst == 0);
}
