// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ten thousand steps leave every tier, the heap, the descriptors and the threads as the first step left them, and none
// of them maps memory.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "laws/support/mapping_calls.hpp"
#include "laws/support/run.hpp"
#include "model/products.hpp"
#include "test_length.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"
#include "train_moe/command_line.hpp"
#include "train_moe/phase_session.hpp"

using namespace laws;

namespace {

std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::size_t resident_bytes() {
  std::ifstream status("/proc/self/statm");
  std::size_t pages = 0;
  status >> pages >> pages;
  return pages * 4096;
}

// What must stay as it is, as one rank of the world sees it.
struct footprint {
  std::array<std::size_t, belay::tier_count> live{}, peak{};  // by tier
  std::uint64_t heap = 0, mappings = 0;
  std::size_t descriptors = 0, threads = 0;

  friend bool operator==(const footprint&, const footprint&) = default;

  // "heap 12, mappings 0, ...": of two that differ, what has.
  [[nodiscard]] std::string text() const {
    std::string out = "heap " + std::to_string(heap) + ", mappings " + std::to_string(mappings) + ", descriptors " +
                      std::to_string(descriptors) + ", threads " + std::to_string(threads);
    for (std::size_t t = 0; t < live.size(); ++t)
      out += std::string(", ") + belay::name(static_cast<belay::tier>(t)) + " " + std::to_string(live[t]) + " of " +
             std::to_string(peak[t]);
    return out;
  }
};

options tiny_run() {
  options run = small_run();
  run.mesh = {2, 1, 2, 1};
  run.schedule = "1f1b";
  run.zero = belay::zero_stage::optimizer_state;
  run.micro_batches = 2;
  run.micro_batch_size = 2;
  run.model.layers = 2;
  return run;
}

struct finding {
  std::size_t first_difference = 0;  // the step whose footprint was not that of the first; 0 when none was
  std::string what;                  // both footprints
  std::size_t growth = 0;            // resident bytes gained after step 100
  bool as_planned = true;            // peak and plan equal on every rank
  std::size_t tiers = 0;             // in which rank 0 has leased something
  std::size_t out_of_phase = 0;      // bytes that leave its device when nothing trains
};

// What must be noticed: a lease of the windows that is never returned, every tenth step, and a page that every step
// takes from the system and gives back.
enum class policy { right, forgets_a_lease, maps_a_page };

template <class T = float>
finding run_steps(std::size_t steps, policy how, belay::stream_choice streams = {}, options run = tiny_run(),
                  const belay::host_products& products = model::products()) {
  run.streams = streams;
  const uneven_text source(run.model.vocab);
  std::vector<std::int32_t> held_out(5 * run.sequence + 3);
  for (std::size_t i = 0; i < held_out.size(); ++i) held_out[i] = static_cast<std::int32_t>(i * i % run.model.vocab);
  finding found;
  std::atomic<bool> as_planned = true;
  const auto body = [&](belay::rank& rank, belay::run& self) {
    using trainer_type = trainer<T, std::remove_reference_t<decltype(self)>>;
    trainer_type trained{run, rank, self, source};
    train_moe::phase_session<trainer_type> phases{trained, run.cycle, held_out};
    const auto& world = trained.mesh().world();
    footprint first;
    // What a phase needs most of all is there when each has been once.
    const std::size_t cycle = run.cycle.entries().size() > 1 ? run.cycle.entries().front().count : 0;
    const std::size_t settled = std::max<std::size_t>(2, cycle + 1);
    belay::lease_chain forgotten;
    std::size_t resident = 0;
    const auto lease = [&](std::size_t elements) {
      static_cast<void>(self.engine().activations().template lease<float>(belay::extents<1>{elements}, forgotten));
    };
    if (how == policy::forgets_a_lease && self.rehearsing()) lease(1 << 18);  // a plan with room for it
    for (const std::size_t step : self.steps(steps)) {
      const auto trained_once = trained.train(step);
      if (self.rehearsing()) {
        phases.rehearse();
        continue;
      }
      const step_result result = trained_once.value();
      const auto silent = [](std::string_view) {};
      phases.after(step, silent, silent);
      if (how == policy::forgets_a_lease && step % 10 == 0) lease(16);
      if (how == policy::maps_a_page)
        ::munmap(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
      const auto as_planned_in = [&](belay::tier of) {
        const auto own = static_cast<std::size_t>(rank.number());
        return trained.memory().peak(of)[own] == trained.memory().planned(of)[own];
      };
      const bool planned = as_planned_in(belay::tier::device) && as_planned_in(belay::tier::pinned) &&
                           as_planned_in(belay::tier::host) && as_planned_in(belay::tier::file) && result.replays == 0;
      if (!planned && step > cycle) as_planned = false;
      world.barrier();  // while rank 0 measures, the others wait
      if (rank.number() == 0 && (step < 5 || step % 100 == 0 || (step == steps && cycle > 0))) {
        // Looking at /proc allocates; what it allocates, and maps, is taken out again.
        footprint now;
        now.heap = tools::heap_allocations();
        now.mappings = mapping_calls();
        for (std::size_t t = 0; t < belay::tier_count; ++t) {
          now.live[t] = self.meters()[static_cast<belay::tier>(t)].live_bytes();
          now.peak[t] = self.meters()[static_cast<belay::tier>(t)].peak_bytes();
        }
        now.descriptors = entries_of("/proc/self/fd");
        now.threads = entries_of("/proc/self/task");
        if (step == 100 || (resident == 0 && step == steps)) resident = resident_bytes();
        if (step == steps) found.growth = resident_bytes() > resident ? resident_bytes() - resident : 0;
        if (step == settled) {
          first = now;
          for (const std::size_t live : now.live) found.tiers += live > 0 ? 1 : 0;
          for (const belay::plan_item& item : self.planned().items())
            if (item.purpose == "out of phase") found.out_of_phase += item.bytes;
        }
        if (step > settled && !(now == first) && found.first_difference == 0) {
          found.first_difference = step;
          found.what = first.text() + "; then " + now.text();
        }
        first.heap += tools::heap_allocations() - now.heap;
        first.mappings += mapping_calls() - now.mappings;
      }
      world.barrier();
    }
  };
  launch(run, body, products);
  found.as_planned = as_planned;
  return found;
}

const belay::stream_choice policies[] = {{}, {belay::stream_policy::queued, 0}, {belay::stream_policy::adversarial, 5}};

std::size_t step_count() { return only_a_sample() ? 300 : 10'000; }

}  // namespace

TEST_CASE("bytes, allocations, descriptors and threads are constant after the first step, and the peak is the plan") {
  const finding found = run_steps(step_count(), policy::right);
  CHECK_MESSAGE(found.first_difference == 0, found.what);
  CHECK(found.as_planned);
  // A sanitizer keeps what was freed, and shadows of what was touched.
  if (!only_a_sample() && tools::heap_is_counted()) CHECK(found.growth < (1U << 20U));
}

TEST_CASE("and in bf16, whose wire and master copies are planned, whatever the policy of the streams") {
  for (const belay::stream_choice& how : policies) {
    CAPTURE(std::string(name(how.policy)));
    const finding found = run_steps<belay::bf16>(30, policy::right, how);
    CHECK_MESSAGE(found.first_difference == 0, found.what);
    CHECK(found.as_planned);
  }
}

// The other tests multiply with what the build has found.
TEST_CASE("and with products by the blocked loop") {
  for (const belay::stream_choice& how : policies) {
    CAPTURE(std::string(name(how.policy)));
    const finding found = run_steps(30, policy::right, how, tiny_run(), {});
    CHECK_MESSAGE(found.first_difference == 0, found.what);
    CHECK(found.as_planned);
  }
}

TEST_CASE("and where streams are queued, or late on purpose") {
  for (const belay::stream_choice& how : policies) {
    if (how.policy == belay::stream_policy::immediate) continue;  // in the first test
    const finding found = run_steps(100, policy::right, how);
    INFO(name(how.policy));
    CHECK_MESSAGE(found.first_difference == 0, found.what);
    CHECK(found.as_planned);
  }
}

TEST_CASE("and where gradients and parameters are divided, gathered for a use or for a step") {
  options run = tiny_run();
  run.mesh = {1, 2, 2, 1};
  for (const belay::zero_stage stage : {belay::zero_stage::gradients, belay::zero_stage::parameters})
    for (const belay::reshard_when reshard : {belay::reshard_when::after_use, belay::reshard_when::after_step})
      for (const recompute_kind recompute : {recompute_kind::none, recompute_kind::selective, recompute_kind::full}) {
        run.zero = stage;
        run.reshard = reshard;
        run.recompute = recompute;
        CAPTURE(static_cast<int>(stage));
        CAPTURE(static_cast<int>(reshard));
        CAPTURE(static_cast<int>(recompute));
        for (const belay::stream_choice& how : policies) {
          CAPTURE(std::string(name(how.policy)));
          const finding found = run_steps(6, policy::right, how, run);
          CHECK_MESSAGE(found.first_difference == 0, found.what);
          CHECK(found.as_planned);
        }
      }
}

TEST_CASE("and where parameters, gradients and state live in lower tiers") {
  options run = tiny_run();
  run.mesh = {1, 2, 2, 1};
  run.zero = belay::zero_stage::parameters;
  run.parameter_tier = run.gradient_tier = belay::tier::pinned;
  run.optimizer_tier = belay::tier::file;
  run.tier_folder = "/tmp";
  run.tier_chunk = belay::parameter_chunk;
  for (const belay::stream_choice& how : policies) {
    const finding found = run_steps(is_soak() ? 1000 : 30, policy::right, how, run);
    CHECK_MESSAGE(found.first_difference == 0, found.what);
    CHECK(found.as_planned);
  }
}

TEST_CASE("and where shard groups replicate their shards") {
  options run = tiny_run();
  run.mesh = {.data = 2, .expert = 2, .shard_group = 1};
  for (const belay::zero_stage stage : {belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
    run.zero = stage;
    const finding found = run_steps(30, policy::right, {belay::stream_policy::queued, 0}, run);
    CHECK_MESSAGE(found.first_difference == 0, found.what);
    CHECK(found.as_planned);
  }
}

TEST_CASE("and where evaluations and rollouts stand between the steps") {
  options run = tiny_run();
  run.mesh = {.data = 2, .expert = 2};
  run.zero = belay::zero_stage::parameters;
  run.model.vocab = 256;  // rollouts continue a text
  run.cycle = train_moe::parse_phases("train=3,eval=1,rollout=1");
  const finding found = run_steps(is_soak() ? 10'000 : 300, policy::right, {}, run);
  CHECK_MESSAGE(found.first_difference == 0, found.what);
  CHECK(found.as_planned);
  if (!only_a_sample() && tools::heap_is_counted()) CHECK(found.growth < (1U << 20U));
}

// Something in every tier, and what is left of gradients in the device leaves it for evaluations and rollouts.
TEST_CASE("and where all that can be is offloaded, to every tier, and phases move the rest") {
  options run = tiny_run();
  run.mesh = {.data = 2, .expert = 2};
  run.zero = belay::zero_stage::parameters;
  run.whole_below = 256;  // bytes: the norms' gradients are in the device
  run.optimizer_tier = belay::tier::file;
  run.parameter_tier = belay::tier::pinned;
  run.gradient_tier = run.activation_tier = belay::tier::host;
  run.phase_tier = belay::tier::pinned;
  run.tier_folder = "/tmp";
  run.tier_chunk = belay::parameter_chunk;
  run.model.vocab = 256;
  run.cycle = train_moe::parse_phases("train=3,eval=1,rollout=1");
  const finding found = run_steps(is_soak() ? 10'000 : 60, policy::right, {}, run);
  CHECK(found.tiers == belay::tier_count);
  CHECK(found.out_of_phase > 0);
  CHECK_MESSAGE(found.first_difference == 0, found.what);
  CHECK(found.as_planned);
  if (!only_a_sample() && tools::heap_is_counted()) CHECK(found.growth < (1U << 20U));
}

TEST_CASE("and where gradients and optimizer state leave the device after each step, and come back before the next") {
  options run = tiny_run();
  run.mesh = {.data = 2, .expert = 2};
  run.zero = belay::zero_stage::gradients;
  run.phase_tier = belay::tier::host;
  run.cycle = train_moe::parse_phases("train=1,eval=1");
  const finding found = run_steps(is_soak() ? 1000 : 30, policy::right, {}, run);
  CHECK(found.out_of_phase > 0);
  CHECK_MESSAGE(found.first_difference == 0, found.what);
  CHECK(found.as_planned);
  if (is_soak() && tools::heap_is_counted()) CHECK(found.growth < (1U << 20U));
}

TEST_CASE("a step that maps memory is noticed") {
  if (!mapping_calls_are_counted()) return;
  CHECK(run_steps(5, policy::maps_a_page).first_difference == 3);
}

TEST_CASE("a lease that is never returned is noticed") {
  const finding found = run_steps(200, policy::forgets_a_lease);
  CHECK(found.first_difference != 0);
}
