// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Three layers whose parameters are gathered in the order that a rehearsal has noted, trained on any world, with other
// calls between the steps and in one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "failures/support/batches.hpp"

namespace gather_orders {

using namespace failures;
using belay::gather_by, belay::gather_counts;

struct three_layers {
  layer first{"first", width, width}, second{"second", width, width}, last{"last", width, width};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight), visit(last.weight); }
};

// What a run calls: layers by number, and where its steps and passes end.
constexpr int step_end = -1;

struct found {
  std::vector<gather_counts> steps, passes;  // by round
  std::vector<double> losses;
  std::vector<int> calls;
};

// What stands between two training steps, and what one of them does otherwise.
enum class between : std::uint8_t { nothing, evaluation, generation };
enum class otherwise : std::uint8_t {
  never,
  one_extra_call,
  one_extra_call_on_rank_1,
  another_layer_on_rank_1,
  one_call_less_on_rank_1,  // of steps that end with a call without gradient
  passes_on_rank_1,         // after the step
  // Steps end with a call without gradient, which rank 1 leaves out; then all make the same call beside the plan.
  same_call_at_another_place,
};

// How steps end, of all ranks but one that does otherwise.
enum class ending : std::uint8_t { with_backward, with_observed_call };

template <class Mesh, class Run>
class rounds {
 public:
  rounds(const Mesh& mesh, Run& run, found& out, gather_by how)
      : mesh_(&mesh), run_(&run), out_(&out), store_(run, mesh, net_, belay::zero<3>{}, {.gathers = how}) {}

  void step(otherwise what, ending ends) {
    belay::step step{run_->engine(), store_};
    const bool is_rank_1 = what != otherwise::never && mesh_->control().rank() == 1;
    if (what == otherwise::one_extra_call) observe(step, 0);
    if (what == otherwise::one_extra_call_on_rank_1 && is_rank_1) observe(step, 2);
    if (what == otherwise::another_layer_on_rank_1) observe(step, is_rank_1 ? 1 : 2);
    const matrix x = data_.inputs();
    auto h = belay::forward(step, first_, belay::constant(x));
    auto g = belay::forward(step, second_, h.out());
    auto y = belay::forward(step, last_, g.out());
    auto [loss, grad] = belay::squared_error(step, matrix(y.out()), data_.targets());
    grad = std::move(y).backward(grad);
    grad = std::move(g).backward(grad);
    std::move(h).backward(grad);
    if (ends == ending::with_observed_call && !is_rank_1) observe(step, 2);
    if (what == otherwise::same_call_at_another_place) observe(step, 0);
    for (const int layer : {0, 1, 2, 2, 1, 0, step_end}) out_->calls.push_back(layer);
    auto outcome = std::move(step).commit(*mesh_, belay::samples{rows});
    if (auto* ok = belay::committed(outcome)) {
      run_->report(*ok, [&](double mean) { out_->losses.push_back(mean); });
      optimizer_.apply(std::move(*ok), {.learning_rate = 1e-1});
    }
    out_->steps.push_back(store_.take_gathered());
  }
  // The layers in another order than a step's.
  void pass() {
    belay::forward_only pass{run_->engine()};
    for (const int layer : {1, 0, 2, step_end}) observe(pass, layer);
  }
  void end_of_passes() { out_->passes.push_back(store_.take_gathered(belay::phase::eval)); }

 private:
  void observe(const auto& scope, int layer) {
    out_->calls.push_back(layer);
    const matrix x = data_.inputs();
    if (layer == 0) static_cast<void>(belay::observe(scope, first_, x));
    if (layer == 1) static_cast<void>(belay::observe(scope, second_, x));
    if (layer == 2) static_cast<void>(belay::observe(scope, last_, x));
  }

  const Mesh* mesh_;
  Run* run_;
  found* out_;
  three_layers net_;
  belay::parameter_store<Run> store_;
  belay::gathers<layer, decltype(store_)> first_{net_.first, store_}, second_{net_.second, store_},
      last_{net_.last, store_};
  belay::adamw<float, typename Run::group_type, typename Run::engine_type::kit_type> optimizer_{store_};
  batches data_{*run_, 1};
};

// What a rank finds goes to its place in `out`.
inline auto body(std::vector<found>& out, between what, otherwise third, gather_by how, std::size_t steps = 20) {
  return [&out, what, third, how, steps](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    found own;
    rounds all{mesh, run, own, how};
    const bool observes = third == otherwise::one_call_less_on_rank_1 || third == otherwise::same_call_at_another_place;
    const ending ends = observes ? ending::with_observed_call : ending::with_backward;
    std::uint32_t random = 1;  // the same on all ranks
    for (auto number : run.steps(steps)) {
      const otherwise now = !run.rehearsing() && number == 3 ? third : otherwise::never;
      all.step(now, ends);
      if (now == otherwise::passes_on_rank_1 && rank.number() == 1)
        for (int pass = 0; pass < 5; ++pass) all.pass();
      random = random * 1664525 + 1013904223;
      const std::size_t passes = what == between::nothing      ? 0
                                 : what == between::evaluation ? 1
                                                               : 1 + (random >> 16) % 7;
      for (std::size_t i = 0; i < passes; ++i) all.pass();
      all.end_of_passes();
    }
    if (!run.rehearsing()) out[static_cast<std::size_t>(rank.number())] = std::move(own);
  };
}

template <class Launch>
std::vector<found> run_on(const Launch& launch, between what, otherwise third, gather_by how = gather_by::reach,
                          std::size_t steps = 20) {
  std::vector<found> out(static_cast<std::size_t>(launch.ranks));
  launch(body(out, what, third, how, steps));
  return out;
}

// The wrong one: a trace of one step or pass, which is cleared by what it did not expect, and then recorded again. What
// it has foreseen of the training steps, which have six calls.
inline std::size_t hits_of_one_trace(const std::vector<int>& calls) {
  std::vector<int> trace, recorded;
  std::size_t at = 0, hits = 0, made = 0, before = 0;
  for (const int call : calls) {
    ++made;
    if (call == step_end) {
      if (trace.empty()) trace = std::exchange(recorded, {});
      if (made != 7) hits = before;
      recorded.clear();
      at = made = 0;
      before = hits;
    } else if (!trace.empty() && at < trace.size() && trace[at] == call) {
      ++at, ++hits;
    } else {
      trace.clear();
      recorded.push_back(call);
    }
  }
  return hits;
}

// Where gathers are collective: a rank that departs from the others, and what all ranks are told.
struct departure {
  otherwise what;
  const char* words;
};
inline constexpr departure departures[] = {
    {otherwise::one_extra_call_on_rank_1, "calls all_gather of 2 x U64"},  // to agree, which its peers do not
    {otherwise::another_layer_on_rank_1, "ranks gather different layers, and the plan says neither"},
    {otherwise::same_call_at_another_place, "layer 0 of the store, as gather 8 of its step or pass; rank 1"},
    {otherwise::one_call_less_on_rank_1, "have gathered layers in different orders in this step"},
};
// What each rank was told, of a step of which `out` then has none.
template <class Launch>
std::vector<std::string> told_of(const Launch& launch, otherwise what, std::vector<found>& out) {
  std::vector<std::string> told(static_cast<std::size_t>(launch.ranks));
  out.resize(told.size());
  const auto guarded = [&](auto& rank, auto& run) {
    const auto all = body(out, between::nothing, what, gather_by::collectives);
    if (run.rehearsing()) return all(rank, run);
    try {
      all(rank, run);
    } catch (const std::exception& error) {
      told[static_cast<std::size_t>(rank.number())] = error.what();
      throw;
    }
  };
  try {
    launch(guarded);
  } catch (const std::exception&) {
    // each rank has told
  }
  return told;
}

}  // namespace gather_orders
