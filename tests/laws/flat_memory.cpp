// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ten thousand steps leave every tier, the heap, the descriptors and the threads as the first step left them.
#include <doctest/doctest.h>

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

#include "laws/support/run.hpp"
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
  std::uint64_t heap = 0;
  std::size_t descriptors = 0, threads = 0;

  friend bool operator==(const footprint&, const footprint&) = default;
};

options tiny_run() {
  options run = small_run();
  run.mesh = {2, 1, 2, 1};
  run.schedule = schedule_kind::one_f_one_b;
  run.zero = belay::zero_stage::optimizer_state;
  run.micro_batches = 2;
  run.micro_batch_size = 2;
  run.model.layers = 2;
  return run;
}

struct finding {
  std::size_t first_difference = 0;  // the step whose footprint was not that of step 2; 0 when none was
  std::size_t growth = 0;            // resident bytes gained after step 100
  bool as_planned = true;            // peak and plan equal on every rank
};

// A lease of the windows that is never returned, every thousandth step: what must be noticed.
enum class policy { right, forgets_a_lease };

template <class T = float, class Kit = model::host_kit>
finding run_steps(std::size_t steps, policy how, belay::stream_choice streams = {}, options run = tiny_run()) {
  run.streams = streams;
  const uneven_text source(run.model.vocab);
  std::vector<std::int32_t> held_out(5 * run.sequence + 3);
  for (std::size_t i = 0; i < held_out.size(); ++i) held_out[i] = static_cast<std::int32_t>(i * i % run.model.vocab);
  finding found;
  std::atomic<bool> as_planned = true;
  launch<Kit>(run, [&](auto& rank, auto& self) {
    using rank_type = std::remove_reference_t<decltype(rank)>;
    using trainer_type = trainer<T, rank_type, std::remove_reference_t<decltype(self)>>;
    trainer_type trained{run, rank, self, source};
    train_moe::phase_session<trainer_type> phases{trained, run.cycle, held_out};
    const auto& world = trained.mesh().world();
    footprint first;
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
      const auto as_planned_in = [&](belay::tier of) {
        const auto own = static_cast<std::size_t>(rank.number());
        return trained.memory().peak(of)[own] == trained.memory().planned(of)[own];
      };
      const bool planned = as_planned_in(belay::tier::device) && as_planned_in(belay::tier::pinned) &&
                           as_planned_in(belay::tier::host) && as_planned_in(belay::tier::file) && result.replays == 0;
      if (!planned) as_planned = false;
      world.barrier();  // while rank 0 measures, the others wait
      if (rank.number() == 0 && (step < 5 || step % 100 == 0)) {
        // Looking at /proc allocates; what it allocates is taken out again.
        footprint now;
        now.heap = tools::heap_allocations();
        for (std::size_t t = 0; t < belay::tier_count; ++t) {
          now.live[t] = self.meters()[static_cast<belay::tier>(t)].live_bytes();
          now.peak[t] = self.meters()[static_cast<belay::tier>(t)].peak_bytes();
        }
        now.descriptors = entries_of("/proc/self/fd");
        now.threads = entries_of("/proc/self/task");
        if (step == 100 || (resident == 0 && step == steps)) resident = resident_bytes();
        if (step == steps) found.growth = resident_bytes() > resident ? resident_bytes() - resident : 0;
        if (step == 2) first = now;
        if (step > 2 && !(now == first) && found.first_difference == 0) found.first_difference = step;
        first.heap += tools::heap_allocations() - now.heap;
      }
      world.barrier();
    }
  });
  found.as_planned = as_planned;
  return found;
}

const belay::stream_choice policies[] = {{}, {belay::stream_policy::queued, 0}, {belay::stream_policy::adversarial, 5}};

std::size_t step_count() { return only_a_sample() ? 300 : 10'000; }

}  // namespace

TEST_CASE("bytes, allocations, descriptors and threads are constant after the first step, and the peak is the plan") {
  const finding found = run_steps(step_count(), policy::right);
  CHECK(found.first_difference == 0);
  CHECK(found.as_planned);
  // A sanitizer keeps what was freed, and shadows of what was touched.
  if (!only_a_sample() && tools::heap_is_counted()) CHECK(found.growth < (1U << 20U));
}

TEST_CASE("and in bf16, whose wire and master copies are planned, whatever the policy of the streams") {
  for (const belay::stream_choice& how : policies) {
    CAPTURE(std::string(name(how.policy)));
    const finding found = run_steps<belay::bf16>(30, policy::right, how);
    CHECK(found.first_difference == 0);
    CHECK(found.as_planned);
  }
}

// The other tests multiply with what the build has found.
TEST_CASE("and with products by the blocked loop") {
  for (const belay::stream_choice& how : policies) {
    CAPTURE(std::string(name(how.policy)));
    const finding found = run_steps<float, belay::host_kit<belay::kernel::blocked_products>>(30, policy::right, how);
    CHECK(found.first_difference == 0);
    CHECK(found.as_planned);
  }
}

TEST_CASE("and where streams are queued, or late on purpose") {
  for (const belay::stream_choice& how : policies) {
    if (how.policy == belay::stream_policy::immediate) continue;  // in the first test
    const finding found = run_steps(100, policy::right, how);
    INFO(name(how.policy));
    CHECK(found.first_difference == 0);
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
          CHECK(found.first_difference == 0);
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
    CHECK(found.first_difference == 0);
    CHECK(found.as_planned);
  }
}

TEST_CASE("and where shard groups replicate their shares") {
  options run = tiny_run();
  run.mesh = {.data = 2, .expert = 2, .shard_group = 1};
  for (const belay::zero_stage stage : {belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
    run.zero = stage;
    const finding found = run_steps(30, policy::right, {belay::stream_policy::queued, 0}, run);
    CHECK(found.first_difference == 0);
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
  CHECK(found.first_difference == 0);
  CHECK(found.as_planned);
  if (!only_a_sample() && tools::heap_is_counted()) CHECK(found.growth < (1U << 20U));
}

TEST_CASE("a lease that is never returned is noticed") {
  const finding found = run_steps(200, policy::forgets_a_lease);
  CHECK(found.first_difference != 0);
}
