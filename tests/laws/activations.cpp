// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Activations in a lower tier train as resident ones, to the bit, whatever the schedule, the recompute, the ZeRO stage
// and the streams, and every tier peaks as planned.
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

namespace {

struct setting {
  belay::axes mesh;
  const char* schedule;
  recompute_kind recompute;
  int zero;
  tier lower;
  belay::stream_choice streams;
};

options run_of(const setting& chosen) {
  options run = small_run();
  run.mesh = chosen.mesh;
  run.steps = 2;
  run.micro_batches = 6;
  run.schedule = chosen.schedule;
  run.recompute = chosen.recompute;
  run.zero = static_cast<belay::zero_stage>(chosen.zero);
  return run;
}

// Every pair of two of the settings at least once; all of them in a soak.
std::vector<setting> settings() {
  const belay::axes meshes[] = {{1, 1, 1, 1}, {2, 1, 1, 1}, {1, 3, 1, 1}, {2, 1, 2, 1}, {4, 1, 1, 1}};
  const char* const schedules[] = {"1f1b", "gpipe"};
  const recompute_kind recomputes[] = {recompute_kind::none, recompute_kind::selective, recompute_kind::full};
  const belay::stream_choice streams[] = {{stream_policy::immediate, 0},
                                          {stream_policy::queued, 0},
                                          {stream_policy::adversarial, 0},
                                          {stream_policy::adversarial, 3}};
  const tier of_calls[] = {tier::host, tier::file, tier::pinned};
  std::vector<setting> out;
  std::size_t number = 0;
  for (const belay::axes& mesh : meshes)
    for (std::size_t i = 0; i < 12; ++i, ++number) {
      const auto add = [&](const belay::stream_choice& how) {
        out.push_back({mesh, schedules[i % 2], recomputes[i % 3], static_cast<int>((i / 3 + number / 12) % 4),
                       of_calls[(i + i / 4 + number / 12) % 3], how});
      };
      if (!is_soak())
        add(streams[(i + number / 12) % 4]);
      else
        for (const belay::stream_choice& how : streams) add(how);
    }
  return out;
}

void offload(options& run, tier lower) {
  run.activation_tier = lower;
  run.tier_folder = lower == tier::file ? "/tmp" : "";
  run.tier_chunk = 1024;
}

struct peaks {
  std::atomic<bool> as_planned = true;
  std::atomic<std::size_t> device = 0, lower = 0;
};

// What every rank has leased at its peak.
void measure(options run, tier lower, const batch_source& source, peaks& out) {
  launch(run, [&](auto& rank, auto& self) {
    trainer<float, std::remove_reference_t<decltype(self)>> trained{run, rank, self, source};
    for (const std::size_t step : self.steps(run.steps)) static_cast<void>(trained.train(step));
    if (self.rehearsing()) return;
    for (const tier of : {tier::device, tier::pinned, tier::host, tier::file})
      if (self.meters()[of].peak_bytes() != self.planned().peak_bytes(of)) out.as_planned = false;
    if (rank.number() != 0) return;
    out.device = self.meters()[tier::device].peak_bytes();
    out.lower = self.meters()[lower].peak_bytes();
  });
}

}  // namespace

TEST_CASE("activations in a lower tier train as resident ones, to the bit") {
  std::size_t number = 0;
  for (const setting& chosen : settings()) {
    if (only_a_sample() && number++ % 4 != 1) continue;
    options run = run_of(chosen);
    const uneven_text source(run.model.vocab);
    const record expected = train<float>(run, source);
    offload(run, chosen.lower);
    run.streams = chosen.streams;
    const difference apart = compare(expected, train<float>(run, source));
    INFO(run.mesh.text() << ", zero " << chosen.zero << ", recompute " << static_cast<int>(chosen.recompute)
                         << ", schedule " << chosen.schedule << ", " << name(chosen.streams.policy)
                         << " " << chosen.streams.seed << ": " << apart.where << " differs by " << apart.worst);
    CHECK(apart.worst == 0);
  }
}

TEST_CASE("every tier peaks as planned, and the device needs less") {
  for (const setting& chosen :
       {setting{{1, 1, 1, 1}, "gpipe", recompute_kind::none, 1, tier::host, {}},
        setting{{2, 1, 1, 1}, "gpipe", recompute_kind::full, 0, tier::pinned, {}},
        setting{{2, 1, 2, 1}, "1f1b", recompute_kind::selective, 1, tier::host, {}},
        setting{{1, 2, 1, 1}, "gpipe", recompute_kind::none, 3, tier::file, {}}}) {
    options run = run_of(chosen);
    const uneven_text source(run.model.vocab);
    peaks resident, offloaded;
    measure(run, chosen.lower, source, resident);
    offload(run, chosen.lower);
    measure(run, chosen.lower, source, offloaded);
    CAPTURE(run.mesh.text());
    CHECK(resident.as_planned);
    CHECK(offloaded.as_planned);
    CHECK(offloaded.device < resident.device);
    CHECK(offloaded.lower > resident.lower);
  }
}

TEST_CASE("a step that is replayed with more room has more in the lower tier too, and the same bits") {
  options run = small_run();
  run.mesh = {1, 1, 2, 1};
  run.expert_capacity = 1;
  run.steps = 2;
  const uneven_text source(run.model.vocab);
  const record expected = train<float>(run, source);
  REQUIRE(expected.replays[0] + expected.replays[1] > 0);
  for (const tier lower : {tier::host, tier::file}) {
    offload(run, lower);
    const record got = train<float>(run, source);
    CHECK(compare(expected, got).worst == 0);
    CHECK(got.replays == expected.replays);
  }
}
