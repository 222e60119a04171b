// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gradients and state of an optimizer that leave the device for the phases that do not train: what moves, what is never
// there twice, who has it back meanwhile, and files that fail. The ways in which trainers have done it wrong are in
// tests/failures/offload_phases.cpp.
#include "belay/train/phase_residency.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/train/checkpoint.hpp"
#include "test_length.hpp"
#include "unit/device/support/tier_file.hpp"
#include "unit/train/support/directory.hpp"
#include "unit/train/support/phase_cycles.hpp"

using namespace phase_cycles;

namespace {

// A disk that refuses what is written from some byte on, and what is read from another on.
struct failing_disk : belay::basic_tier_file_calls<belay::no_transfer_ring> {
  static constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();
  static inline std::atomic<std::int64_t> full_from = nowhere, unreadable_from = nowhere;
  static inline std::atomic<int> code = 0;

  static ssize_t write_at(int file, const void* from, std::size_t bytes, off_t offset) {
    if (offset >= full_from) return refused();
    return basic_tier_file_calls::write_at(file, from, bytes, offset);
  }
  static ssize_t read_at(int file, void* to, std::size_t bytes, off_t offset) {
    if (offset >= unreadable_from) return refused();
    return basic_tier_file_calls::read_at(file, to, bytes, offset);
  }
  static void repair() { full_from = nowhere, unreadable_from = nowhere; }

 private:
  static ssize_t refused() {
    errno = code;
    return -1;
  }
};

// Two ranks that train a step, with the disk of rank 1 a failing one. `body` goes on.
template <class Body>
void on_a_failing_disk(std::size_t hidden, Body&& body) {
  const tier_files::folder scratch;
  failing_disk::repair();
  belay::launch(belay::host::world{2}, [&](auto& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    const auto go = [&]<class Calls>(Calls) {
      belay::mesh mesh{rank, {.data = rank.size()}};
      hidden_network net(hidden);
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      belay::phase_residency<run_type, Calls> residency{
          run, belay::residency_memory{.lower = tier::file, .files = {.folder = scratch.path}}, store};
      belay::phase_switch phases{run, mesh, store};
      phases.moves(residency);
      auto training = phases.begin();
      std::size_t steps = 0;
      const auto step = [&] { return step_once(mesh, run, net, store, optimizer, ++steps); };
      static_cast<void>(step());
      body(rank, run, residency, phases, training, store, optimizer, step);
    };
    rank.number() == 1 ? go(failing_disk()) : go(belay::system_tier_file_calls());
  });
  CHECK(scratch.empty());
}

}  // namespace

TEST_CASE("a thousand cycles of offload leave every tier, and the resident set, as the first left them") {
  const found resident = run_phases(policy::right, tier::device, 12, 2, 1);
  const tier_files::folder scratch;
  for (const tier lower : {tier::pinned, tier::file}) {
    const found got = run_phases(policy::right, lower, 12, 2, lower == tier::file ? 50 : 500, scratch.path);
    CHECK(got.losses == resident.losses);
    CHECK(got.bytes > 0);
    CHECK(got.leaves);
    CHECK(got.flat);
    CHECK(got.named);
    CHECK(got.checkpoints);
    CHECK(got.as_planned);
    if (!only_a_sample()) CHECK(got.growth < std::size_t{1} << 20);  // a sanitizer's own memory grows
  }
  CHECK(scratch.empty());
}

TEST_CASE("a transition never holds both residencies") {
  const tier_files::folder scratch;
  const found resident = run_phases(policy::right, tier::device, 65536, 2, 1);
  for (const tier lower : {tier::pinned, tier::host, tier::file}) {
    const found got = run_phases(policy::right, lower, 65536, 2, 2, scratch.path);
    CHECK(got.losses == resident.losses);
    CHECK(got.bytes > 4 * belay::phase_residency<int>::chunk_bytes);
    CHECK(got.most_in_both <= got.bytes + belay::phase_residency<int>::chunk_bytes);
    CHECK(got.leaves);
    CHECK(got.flat);
    CHECK(got.checkpoints);
    CHECK(got.as_planned);
  }
}

TEST_CASE("a checkpoint that is written or loaded while the state is away has the state, and leaves it away") {
  for (const tier lower : {tier::pinned, tier::file}) {
    CAPTURE(belay::name(lower));
    const tier_files::folder scratch;
    const train_bench::directory saves;
    belay::launch(belay::host::world{2}, [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = rank.size()}};
      hidden_network net(40000);
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      belay::checkpoints saved{run, mesh, {.folder = saves / "run", .every = 1}};
      saved.add(store, optimizer);
      static_cast<void>(saved.open());
      belay::phase_residency residency{run, belay::residency_memory{lower, {scratch.path}}, store};
      belay::phase_switch phases{run, mesh, store};
      phases.moves(residency);
      auto training = phases.begin();
      const auto live = [&] { return run.meters()[tier::device].live_bytes(); };
      const auto step = [&](std::size_t number) {
        static_cast<void>(step_once(mesh, run, net, store, optimizer, number));
        run.engine().synchronize();
      };
      const auto state = [&] { return run.rehearsing() ? std::vector<float>() : state_of(optimizer); };
      step(1);
      const std::vector<float> first = state();
      auto evaluating = phases.to_eval(std::move(training));
      const std::size_t without = live();
      static_cast<void>(saved.after(1));
      CHECK(live() == without + residency.bytes());  // what is written is there, and is away for the phase
      CHECK(residency.away());
      saved.close();
      if (!run.rehearsing()) {
        CHECK(live() == without);
        CHECK(!residency.here());
      }
      training = phases.to_train(std::move(evaluating));
      CHECK(state() == first);
      step(2);
      const std::vector<float> second = state();
      if (!run.rehearsing()) CHECK(second != first);
      // What is loaded in another phase is what training goes on with.
      evaluating = phases.to_eval(std::move(training));
      saved.load(saves / "run/step-00000001", belay::state_kinds::all);
      CHECK(live() == without);
      training = phases.to_train(std::move(evaluating));
      CHECK(state() == first);
      // One that is still being written when training is entered is what it was begun with.
      step(3);
      const std::vector<float> third = state();
      evaluating = phases.to_eval(std::move(training));
      static_cast<void>(saved.after(3));
      training = phases.to_train(std::move(evaluating));
      step(4);
      saved.close();
      saved.load(saves / "run/step-00000003", belay::state_kinds::all);
      CHECK(state() == third);
      for (const tier of : {tier::device, tier::host, tier::pinned, tier::file})
        if (!run.rehearsing()) CHECK(run.meters()[of].peak_bytes() == run.planned().peak_bytes(of));
    });
  }
}

TEST_CASE("a file that refuses the state keeps all ranks in the phase before, and nothing is lost") {
  constexpr std::int64_t second_chunk = std::int64_t{1} << 20;
  for (const int code : {EIO, ENOSPC}) {
    on_a_failing_disk(130000, [&](auto& rank, auto& run, auto& residency, auto& phases, auto& training, auto& store,
                                  auto& optimizer, auto& step) {
      if (run.rehearsing()) {
        auto evaluating = phases.to_eval(std::move(training));
        training = phases.to_train(std::move(evaluating));
        return;
      }
      run.engine().synchronize();
      const auto barrier = [&] { rank.world().barrier(); };
      const std::vector<float> state = state_of(optimizer);
      const std::size_t device = run.meters()[tier::device].live_bytes();
      barrier();
      failing_disk::code = code;
      failing_disk::full_from = second_chunk;
      barrier();
      CHECK_THROWS_WITH_AS(static_cast<void>(phases.to_eval(std::move(training))), doctest::Contains("rank 1"),
                           belay::file_error);
      CHECK(!residency.away());
      CHECK(residency.here());
      CHECK(run.meters()[tier::device].live_bytes() == device);
      CHECK(state_of(optimizer) == state);
      barrier();
      // What has left cannot be read either: it is not trained with, and not lost.
      failing_disk::unreadable_from = 0;
      barrier();
      CHECK_THROWS_AS(static_cast<void>(phases.to_eval(std::move(training))), belay::file_error);
      CHECK(residency.here() == (rank.number() == 0));
      if (rank.number() == 1) {
        CHECK_THROWS_AS(static_cast<void>(state_of(optimizer)), belay::tier_file_error);
        CHECK_THROWS_AS(store.note_before_update(), belay::usage_error);
      }
      barrier();
      failing_disk::repair();
      barrier();
      CHECK(state_of(optimizer) == state);
      CHECK(residency.restore() == 0);
      static_cast<void>(step());
      run.engine().synchronize();
      // The way back.
      const std::vector<float> later = state_of(optimizer);
      CHECK(later != state);
      auto evaluating = phases.to_eval(std::move(training));
      const std::size_t without = run.meters()[tier::device].live_bytes();
      barrier();
      failing_disk::unreadable_from = second_chunk;
      barrier();
      CHECK_THROWS_WITH_AS(static_cast<void>(phases.to_train(std::move(evaluating))), doctest::Contains("rank 1"),
                           belay::file_error);
      CHECK(residency.away());
      CHECK(run.meters()[tier::device].live_bytes() == without);
      barrier();
      failing_disk::repair();
      barrier();
      training = phases.to_train(std::move(evaluating));
      CHECK(state_of(optimizer) == later);
    });
  }
}

TEST_CASE("state that is held does not leave, and state that is away is not updated") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 1}};
    hidden_network net(12);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::phase_residency residency{run, tier::host, store};
    belay::phase_switch phases{run, mesh, store};
    phases.moves(residency);
    auto training = phases.begin();
    {
      const auto here = store.hold_state();
      CHECK_THROWS_WITH_AS(static_cast<void>(phases.to_eval(std::move(training))), doctest::Contains("are held"),
                           belay::usage_error);
    }
    auto evaluating = phases.to_eval(std::move(training));
    CHECK_THROWS_WITH_AS(store.note_before_update(), doctest::Contains("are away"), belay::usage_error);
    {
      const auto here = residency.hold();  // it is for reading
      CHECK(residency.here());
      CHECK_THROWS_WITH_AS(store.note_before_update(), doctest::Contains("are away"), belay::usage_error);
    }
    CHECK_THROWS_WITH_AS(belay::phase_residency(run, tier::host, store), doctest::Contains("already"),
                         belay::usage_error);
    training = phases.to_train(std::move(evaluating));
    store.note_before_update();
  });
}

TEST_CASE("a plan has the file and its ring, and a budget of one byte less is refused") {
  const tier_files::folder scratch;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    hidden_network net(12);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::phase_residency residency{run, belay::residency_memory{tier::file, {scratch.path}}, store};
    CHECK(!residency.away());
  };
  const belay::rehearsal_result plan = belay::rehearse(2, body);
  std::size_t most = 0;
  for (const belay::rank_plan& each : plan.plan.ranks()) most = std::max(most, each.peak_bytes(tier::file));
  CHECK(most > 0);
  CHECK(plan.text().find("out of phase ring") != std::string::npos);
  belay::launch_options limited;
  limited.budget[tier::file] = most;
  belay::launch(belay::host::world{2}, body, limited);
  limited.budget[tier::file] = most - 1;
  CHECK_THROWS_AS(belay::launch(belay::host::world{2}, body, limited), belay::plan_refused);
}

TEST_CASE("without a lower tier nothing moves, and the audit shows it") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 1}};
    hidden_network net(12);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    belay::phase_residency residency{run, tier::device, store};
    belay::phase_switch phases{run, mesh, store};
    phases.moves(residency);
    auto training = phases.begin();
    static_cast<void>(step_once(mesh, run, net, store, optimizer, 1));
    auto evaluating = phases.to_eval(std::move(training));
    CHECK(phases.last().live_before == phases.last().live_after);
    CHECK(phases.last().given_back.size() == 1);  // gathered parameters: none
    CHECK(phases.last().given_back[0].bytes == 0);
    training = phases.to_train(std::move(evaluating));
    CHECK(phases.last().taken.empty());
    CHECK_THROWS_WITH_AS(belay::phase_residency(run, tier::file, store), doctest::Contains("has no folder"),
                         belay::usage_error);
  });
}
