// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Phases as values: what a transition ends, what it compares and what it says.
#include "belay/train/phase_switch.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;
using belay::phase;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct three_layers {
  listed first{{{"first.weight", {7, 7}}}}, second{{{"second.weight", {7, 7}}}}, last{{{"last.weight", {3, 7}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight), visit(last.weight); }
};

template <class Mesh, class Run>
struct trainer {
  const Mesh& mesh;
  Run& run;
  three_layers net{};
  belay::parameter_store<Run> store{run, mesh, net, belay::zero<3>{}};
  belay::gathers<listed, belay::parameter_store<Run>> first{net.first, store}, second{net.second, store},
      last{net.last, store};
  belay::adamw<float, typename Run::group_type, typename Run::engine_type::kit_type> optimizer{store};

  double step(std::size_t number) {
    const data batch{number, 0};
    belay::step step{run.engine(), store};
    auto h = belay::forward(step, first, belay::constant(batch.inputs()));
    auto g = belay::forward(step, second, h.out());
    auto y = belay::forward(step, last, g.out());
    auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
    grad = std::move(y).backward(grad);
    grad = std::move(g).backward(grad);
    std::move(h).backward(grad);
    auto outcome = std::move(step).commit(mesh, belay::samples{rows});
    double found = 0;
    if (auto* ok = belay::committed(outcome)) {
      found = ok->summary().mean_loss();
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    }
    return found;
  }
  // Evaluation and rollout call their layers in orders of their own.
  void evaluate() {
    belay::forward_only pass{run.engine()};
    observe(pass, second), observe(pass, first), observe(pass, last);
  }
  void roll_out() {
    belay::forward_only pass{run.engine()};
    observe(pass, last), observe(pass, second), observe(pass, first);
  }
  void observe(const auto& pass, auto& layer) {
    const data batch{1, 0};
    static_cast<void>(belay::observe(pass, layer, batch.inputs()));
  }
};
template <class Mesh, class Run>
trainer(const Mesh&, Run&) -> trainer<Mesh, Run>;

}  // namespace

TEST_CASE("each phase has a plan of its own, and training does not notice the others") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    std::vector<double> alone, among;
    std::vector<belay::gather_counts> counts;
    std::vector<std::vector<std::size_t>> live;
    const auto body = [&](std::vector<double>& losses, bool with_phases) {
      return [&losses, &counts, &live, with_phases](auto& rank, auto& run) {
        belay::mesh mesh{rank, {.data = rank.size()}};
        trainer<decltype(mesh), std::remove_reference_t<decltype(run)>> all{mesh, run};
        belay::phase_switch phases{run, mesh, all.store};
        auto training = phases.begin();
        const bool speaks = !run.rehearsing() && rank.number() == 0;
        for (auto number : run.steps(20)) {
          const double loss = all.step(number);
          if (speaks) losses.push_back(loss);
          if (!with_phases) continue;
          auto evaluating = phases.to_eval(std::move(training));
          for (int i = 0; i < 2; ++i) all.evaluate();
          auto rolling = phases.to_rollout(std::move(evaluating));
          for (std::size_t i = 0; i < 1 + number % 3; ++i) all.roll_out();
          training = phases.to_train(std::move(rolling));
          const belay::transition& found = phases.last();
          CHECK(found.from == phase::rollout);
          CHECK(found.to == phase::train);
          if (!run.rehearsing()) CHECK(found.after_step == number);
          for (const std::ptrdiff_t grown : found.grown) CHECK(grown == 0);
          if (speaks) live.push_back({found.live_after.begin(), found.live_after.end()});
          for (const phase each : belay::all_phases)
            if (const auto one = all.store.take_gathered(each); speaks) counts.push_back(one);
        }
      };
    };
    belay::launch(belay::host::world{ranks}, body(alone, false));
    belay::launch(belay::host::world{ranks}, body(among, true));
    CHECK(alone == among);
    CHECK(alone.size() == 20);
    for (const auto& each : live) CHECK(each == live.front());
    if (ranks == 1) continue;  // nothing is divided
    REQUIRE(counts.size() == 60);
    for (const belay::gather_counts& each : counts) {
      CHECK(each.missed == 0);
      CHECK(each.prefetched > 0);
    }
  }
}

TEST_CASE("a transition says what its hooks gave back, and what one has kept") {
  belay::launch(belay::host::world{2}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    trainer<decltype(mesh), std::remove_reference_t<decltype(run)>> all{mesh, run};
    belay::phase_switch phases{run, mesh, all.store};
    phases.on_leave(phase::rollout, "rollout cache", belay::tier::host, [] { return std::size_t{640}; });
    auto training = phases.begin();
    static_cast<void>(all.step(1));
    auto rolling = phases.to_rollout(std::move(training));
    CHECK(phases.last().given_back.size() == 1);  // training has no hook
    training = phases.to_train(std::move(rolling));
    const belay::transition first = phases.last();
    REQUIRE(first.given_back.size() == 2);
    CHECK(first.given_back[0].what == "gathered parameters");
    CHECK(first.given_back[1].what == "rollout cache");
    CHECK(first.given_back[1].of == belay::tier::host);
    CHECK(first.given_back[1].bytes == 640);
    CHECK(first.resident_after > 0);

    // The wrong cache: of the next rollout, it stays.
    rolling = phases.to_rollout(std::move(training));
    static_cast<void>(run.template lease<float>(belay::tier::host, 64, "cache"));
    training = phases.to_train(std::move(rolling));
    CHECK(phases.last().grown[static_cast<std::size_t>(belay::tier::host)] == 256);
    CHECK(phases.last().grown[static_cast<std::size_t>(belay::tier::device)] == 0);
  });
}

TEST_CASE("parameters that a pass has left whole are given back") {
  belay::launch(belay::host::world{2}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    trainer<decltype(mesh), std::remove_reference_t<decltype(run)>> all{mesh, run};
    belay::phase_switch phases{run, mesh, all.store};
    auto training = phases.begin();
    static_cast<void>(all.step(1));
    auto evaluating = phases.to_eval(std::move(training));
    {
      belay::forward_only pass{run.engine()};
      all.observe(pass, all.second);  // the plan has more
      all.observe(pass, all.first);
      if (run.rehearsing()) all.observe(pass, all.last);
    }
    if (!run.rehearsing()) CHECK(all.store.gathered_bytes() > 0);
    training = phases.to_train(std::move(evaluating));
    CHECK(all.store.gathered_bytes() == 0);
    if (run.rehearsing()) return;
    CHECK(phases.last().given_back[0].bytes >= 3 * 7 * sizeof(float));
    CHECK(phases.last().live_before[0] - phases.last().live_after[0] >= 3 * 7 * sizeof(float));
    static_cast<void>(all.step(2));
    CHECK(all.store.take_gathered().missed == 0);
  });
}

TEST_CASE("what is done in the wrong phase is refused") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 1}};
    trainer<decltype(mesh), std::remove_reference_t<decltype(run)>> all{mesh, run};
    if (run.rehearsing()) return static_cast<void>(all.step(1));
    belay::phase_switch phases{run, mesh, all.store};
    auto training = phases.begin();
    CHECK_THROWS_WITH_AS(static_cast<void>(phases.begin()), doctest::Contains("a run begins once"), belay::usage_error);
    auto evaluating = phases.to_eval(std::move(training));
    CHECK_THROWS_WITH_AS(static_cast<void>(all.step(1)),
                         doctest::Contains("a step trains, and this rank is in its eval phase"), belay::usage_error);
    CHECK_THROWS_WITH_AS(static_cast<void>(phases.to_rollout(std::move(training))),
                         doctest::Contains("this phase was moved from"), belay::usage_error);
    {
      belay::forward_only pass{run.engine()};
      CHECK_THROWS_WITH_AS(static_cast<void>(phases.to_train(std::move(evaluating))), doctest::Contains("still open"),
                           belay::usage_error);
    }
    training = phases.to_train(std::move(evaluating));  // it was not lost
    static_cast<void>(all.step(1));
  });
}

namespace {

// A store whose plan is its rank's own.
struct store_of_its_own {
  std::uint64_t hash;
  std::size_t drain(belay::where) { return 0; }
  [[nodiscard]] std::uint64_t plan_hash() const { return hash; }
};

}  // namespace

TEST_CASE("ranks whose plans differ are told when they leave a phase") {
  const auto body = [](auto& rank, auto& run) {
    if (run.rehearsing()) return;
    belay::mesh mesh{rank, {.data = rank.size()}};
    store_of_its_own store{4};
    belay::phase_switch phases{run, mesh, store};
    auto evaluating = phases.to_eval(phases.begin());
    if (rank.number() == 2) store.hash = 5;
    CHECK_THROWS_WITH_AS(static_cast<void>(phases.to_train(std::move(evaluating))),
                         doctest::Contains("gather the layers of a step in different orders"), belay::usage_error);
    CHECK(run.engine().current_phase() == phase::eval);
  };
  belay::launch(belay::host::world{3}, body);
}
