// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that hold several stages of a network: the bits of a loop over its layers, in training and evaluation.
#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/parallel/pipeline_stage.hpp"
#include "unit/parallel/support/breadth_first_in_v.hpp"
#include "unit/parallel/support/staged_network.hpp"

using namespace staged;
namespace schedule = belay::schedule;

namespace {

// The parts of a network that a rank holds.
class rank_network {
 public:
  rank_network(const schedule::dynamic_table& table, std::size_t rank) {
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk)
      parts_.emplace_back(table.stage(rank, chunk), table.stages());
  }
  void for_each_parameter(auto&& visit) {
    for (network& part : parts_) part.for_each_parameter(visit);
  }
  [[nodiscard]] std::deque<network>& parts() { return parts_; }

 private:
  std::deque<network> parts_;
};

template <class Rule>
struct stages_of_chunks {
  std::deque<belay::pipeline_stage<network>> stages;
  std::vector<belay::pipeline_stage<network>*> pointers;

  stages_of_chunks(rank_network& net, Rule rule) {
    for (network& part : net.parts()) pointers.push_back(&stages.emplace_back(part, rule));
  }
};

struct trained_chunks : trained {
  std::vector<float> logits;  // of the first micro-batch, after training
};

template <class Rule>
void train(const schedule::dynamic_table& table, Rule rule, trained_chunks& out) {
  const int ranks = static_cast<int>(table.ranks());
  const auto body = [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.pipeline = rank.size()}};
    rank_network net(table, static_cast<std::size_t>(rank.number()));
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    stages_of_chunks<Rule> own(net, rule);
    belay::pipeline pipeline{mesh, table, belay::boundary<float>({rows, width})};
    const belay::stages_of_rank<belay::pipeline_stage<network>> stages(own.pointers);
    for (auto number : run.steps(3)) {
      const batch data(number);
      belay::step step{run.engine(), store};
      pipeline.run(step, stages, data.inputs(), data.loss());
      auto outcome = std::move(step).commit(mesh, belay::target_tokens{micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](const belay::step_summary& end) {
          out.losses.push_back(end.mean_loss());
          out.norms.push_back(end.norm);
        });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      }
    }
    const batch data(0);
    belay::forward_only pass{run.engine(), store};
    pipeline.observe(pass, stages, data.inputs()[0], [&](hidden_view logits) {
      if (!run.rehearsing()) out.logits.assign(logits.data(), logits.data() + logits.size());
    });
    if (!run.rehearsing())
      for (network& part : net.parts()) out.keep(part);
  };
  const belay::rehearsal_result planned = belay::rehearse(ranks, body);
  belay::launch(belay::host::world{ranks}, [&](belay::rank& rank, belay::run& run) {
    body(rank, run);
    if (run.rehearsing()) return;
    const auto& plan = planned.plan.ranks()[static_cast<std::size_t>(rank.number())];
    CHECK(run.meters()[belay::tier::device].peak_bytes() == plan.peak_bytes(belay::tier::device));
  });
}

std::vector<schedule::dynamic_table> tables() {
  std::vector<schedule::dynamic_table> all;
  for (const auto& [ranks, chunks] : {std::pair{1, 2}, {1, 3}, {2, 3}, {3, 2}}) {
    const auto p = static_cast<std::size_t>(ranks), v = static_cast<std::size_t>(chunks);
    all.push_back(schedule::generate(schedule::interleaved_rule{v}, p, micro_batches));
    all.push_back(schedule::generate(schedule::breadth_first_rule{v}, p, micro_batches));
    if (v == 2) all.push_back(schedule::generate(test::breadth_first_in_v{}, p, micro_batches));
  }
  for (const char* name :
       {"zb-h1", "zb-h2", "interleaved-zb:2", "zb-v", "v-half", "v-min", "dualpipe-v", "dualpipe-v:atomic"})
    for (const std::size_t p : {std::size_t{1}, std::size_t{2}})
      all.push_back(schedule::named_table(name, p, micro_batches));
  all.push_back(schedule::named_table("zb-h1", 3, micro_batches));
  return all;
}

// A stage of one's own whose backwards are whole.
struct whole_stage {
  void forward(const auto&, belay::view<const float, 2>) { FAIL("it ran"); }
  void backward(const auto&, belay::view<const float, 2>) {}
  [[nodiscard]] belay::view<const float, 2> output(std::size_t) const { return {}; }
  [[nodiscard]] belay::view<const float, 2> input_gradient(std::size_t) const { return {}; }
  void release(std::size_t) {}
};

}  // namespace

TEST_CASE("several stages on a rank give the bits of a loop over the layers, in loops and in a V, recomputed or not") {
  trained loop;
  train_by_loop(3, loop);
  std::vector<float> logits;
  for (const auto& table : tables()) {
    CAPTURE(table.name());
    CAPTURE(table.ranks());
    CAPTURE(table.chunks());
    trained_chunks kept, again;
    train(table, belay::recompute_none{}, kept);
    train(table, belay::recompute_all{}, again);
    for (const trained_chunks* one : {&kept, &again}) {
      CHECK(one->losses == loop.losses);
      CHECK(one->values == loop.values);
      REQUIRE(one->norms.size() == loop.norms.size());
      // Ranks add their squares in another order.
      for (std::size_t i = 0; i < loop.norms.size(); ++i)
        CHECK(one->norms[i] == doctest::Approx(loop.norms[i]).epsilon(1e-14));
      if (logits.empty()) logits = one->logits;
      CHECK(one->logits == logits);
      CHECK(logits.size() == rows * vocabulary);
    }
  }
}

TEST_CASE("a stage without halves, and actions that nobody runs, are refused before anything is sent") {
  belay::launch(belay::host::world{1}, [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.pipeline = 1}};
    whole_stage stage;
    belay::pipeline pipeline{mesh, schedule::named_table("zb-h1", 1, 2), belay::boundary<float>({rows, width})};
    belay::step step{run.engine()};
    CHECK_THROWS_WITH_AS(pipeline.run(step, stage), doctest::Contains("the stage of this rank has none"),
                         belay::usage_error);
    step.cut_off();
    const auto with_offload = schedule::from_csv("belay-schedule 2,kept,1,1,1,0\nF0,O0,R0,B0\n");
    CHECK_THROWS_WITH_AS((belay::pipeline{mesh, with_offload, belay::boundary<float>({rows, width})}),
                         doctest::Contains("an action beside its computes, offload"), belay::usage_error);
  });
}

TEST_CASE("a rank that gives fewer stages than its schedule has is refused") {
  const auto table = schedule::generate(schedule::interleaved_rule{2}, 1, micro_batches);
  belay::launch(belay::host::world{1}, [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.pipeline = 1}};
    network net(0, 1);
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::pipeline_stage stage{net};
    belay::pipeline pipeline{mesh, table, belay::boundary<float>({rows, width})};
    const batch data(0);
    belay::step step{run.engine(), store};
    CHECK_THROWS_WITH_AS(pipeline.run(step, stage, data.inputs(), data.loss()),
                         doctest::Contains("has 2 stages on each rank, and this rank gives 1"), belay::usage_error);
    step.cut_off();
  });
}
