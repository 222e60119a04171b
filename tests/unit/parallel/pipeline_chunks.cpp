// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that hold several stages of a network: the bits of a loop over its layers, in training and evaluation.
#include <doctest/doctest.h>

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/span_log.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/parallel/pipeline_stage.hpp"
#include "belay/step/offloaded_activations.hpp"
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
  // The table of tokens asks for its gradient's memory, on the rank that has the first stage.
  std::size_t halves = 0;
  for (const schedule::action& each : table.actions(table.rank_of(0)))
    if (each.kind == schedule::action_kind::input_gradient && each.chunk == table.chunk_of(0)) ++halves;
  for (std::size_t rank = 0; rank < table.ranks(); ++rank)
    CHECK(planned.memory[rank].added_at_once == (table.rank_of(0) == rank ? halves : 0));
  const std::string said = "halves at most " + std::to_string(halves) + " on a rank add their weight gradients";
  CHECK((planned.text().find(said) != std::string::npos) == (halves > 0));
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

namespace {

// Collectives and copies of one step, of all ranks together, by name; and what training has given.
struct counted {
  std::map<std::string, std::size_t> calls;
  std::vector<double> losses;
  std::mutex one_at_a_time;

  void add(const belay::span_log& from, const belay::gather_counts& gathers) {
    const std::lock_guard<std::mutex> alone(one_at_a_time);
    std::string_view before;  // the layer's call that began last
    for (const belay::traced_span& each : from.spans()) {
      if (each.kind == belay::span_kind::communication || each.kind == belay::span_kind::copy) ++calls[each.name];
      if (each.kind != belay::span_kind::layer) continue;
      if (std::string_view(each.call) == "recompute")
        ++calls[before == "backward" || before == "input gradient" ? "recompute" : "recompute elsewhere"];
      before = each.call;
    }
    calls["gathered layer"] += gathers.prefetched + gathers.in_order + gathers.missed;
    calls["gathered out of order"] += gathers.missed;
  }
};

// A schedule of halves with a whole backward in the place of each first half, and nothing in that of each second.
schedule::dynamic_table whole_backwards_of(const schedule::dynamic_table& halves) {
  const std::string text = std::regex_replace(schedule::to_csv(halves), std::regex(",W[0-9.]+"), "");
  return schedule::from_csv(std::regex_replace(text, std::regex(",I"), ",B"));
}

// Two pipelines of two ranks, whose layers are divided between them (ZeRO 3), with activations in the host's memory.
template <class Rule>
void train_divided(const schedule::dynamic_table& table, Rule rule, counted& out) {
  // They outlive the ranks: what a stream has begun ends its span.
  std::vector<std::vector<belay::traced_span>> rooms(4, std::vector<belay::traced_span>(4096));
  std::deque<belay::span_log> logs;
  for (auto& room : rooms) logs.emplace_back(room);
  belay::launch(belay::host::world{4}, [&](belay::rank& rank, auto& run) {
    using run_type = std::remove_reference_t<decltype(run)>;
    using activations_type = belay::offloaded_activations<typename run_type::engine_type>;
    belay::mesh mesh{rank, {.pipeline = 2, .data = 2}};
    rank_network net(table, static_cast<std::size_t>(mesh.pipeline().rank()));
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.bucket_bytes = 64}};
    belay::adamw optimizer{store};
    using whole_type = belay::gathering_network<network, decltype(store)>;
    using stage_type = belay::pipeline_stage<whole_type, activations_type>;
    activations_type activations(run, belay::tier::host);
    std::deque<whole_type> whole;
    std::deque<stage_type> own;
    std::vector<stage_type*> pointers;
    for (network& part : net.parts())
      pointers.push_back(&own.emplace_back(whole.emplace_back(part, store), rule, activations));
    belay::pipeline pipeline{mesh, table, belay::boundary<float>({rows, width})};
    belay::span_log& log = logs[static_cast<std::size_t>(rank.number())];
    for (auto number : run.steps(2)) {
      const batch data(number);
      if constexpr (requires { run.engine().trace_into(&log); })
        if (!run.rehearsing() && number == 2) run.engine().trace_into(&log), mesh.world().trace_into(&log);
      static_cast<void>(store.take_gathered());
      belay::step step{run.engine(), store};
      pipeline.run(step, belay::stages_of_rank<stage_type>(pointers), data.inputs(), data.loss());
      auto outcome = std::move(step).commit(mesh, belay::target_tokens{2 * micro_batches * rows});
      const belay::gather_counts gathers = store.take_gathered();
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      }
      if (run.rehearsing() || number != 2) continue;
      if constexpr (requires { run.engine().trace_into(&log); }) {
        run.engine().compute().synchronize();
        run.engine().trace_into(nullptr), mesh.world().trace_into(nullptr);
      }
      CHECK(log.forgotten() == 0);
      out.add(log, gathers);
    }
  });
}

}  // namespace

TEST_CASE("halves gather, recompute, reduce and bring back as often as whole backwards, and train the same") {
  const auto compare = [](const char* name, auto rule) {
    CAPTURE(name);
    counted expected, got;
    const auto halves = schedule::named_table(name, 2, micro_batches);
    train_divided(whole_backwards_of(halves), rule, expected);
    train_divided(halves, rule, got);
    CHECK(got.calls == expected.calls);
    CHECK(got.losses == expected.losses);
    CHECK(got.calls.at("gathered layer") == 2 * 2 * (layers + 2) * micro_batches);  // forward and backward, by replica
    CHECK(got.calls.at("gathered out of order") == 0);
    CHECK(got.calls["recompute"] == (rule(0) ? 2 * layers * micro_batches : 0));
    CHECK(got.calls["recompute elsewhere"] == 0);
    for (const char* call : {"reduce_scatter_v", "all_gather_v", "copy"}) CHECK(got.calls[call] > 0);
  };
  for (const char* name : {"zb-h1", "zb-v"}) {
    compare(name, belay::recompute_none{});
    compare(name, belay::recompute_all{});
  }
}

namespace {

struct thrown {};

// Throws when the stream has been given one action of a row.
struct failing_after final : belay::action_observer {
  std::size_t last = ~std::size_t{0};
  void given(std::size_t number) override {
    if (number == last) throw thrown{};
  }
};

// Overflows in its second step, once.
struct overflowing final : belay::participant {
  std::size_t steps = 0, room = 1;
  void begin(const belay::step_start& start, belay::where) override {
    if (start.micro_batches != 1) ++steps;
  }
  [[nodiscard]] belay::ballot findings() override { return {.needed_rows = steps == 2 && room == 1 ? 8U : 0U}; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return room; }
  void make_room(std::size_t rows, belay::where) override { room = rows; }
};

}  // namespace

TEST_CASE("a step in halves that ends after any of its actions, or is replayed, leaves nothing behind") {
  trained loop;
  train_by_loop(3, loop);
  const auto late = schedule::from_csv("belay-schedule 2,late,1,4,1,0\nF0,F1,F2,F3,I0,I1,W0,I2,I3,W1,W2,W3\n");
  for (const auto& table :
       {late, schedule::named_table("zb-v", 1, micro_batches), schedule::named_table("zb-h1", 2, micro_batches)}) {
    CAPTURE(table.name());
    trained found;
    std::vector<std::size_t> numbers;
    belay::launch(belay::host::world{static_cast<int>(table.ranks())}, [&](belay::rank& rank, belay::run& run) {
      belay::mesh mesh{rank, {.pipeline = rank.size()}};
      rank_network net(table, static_cast<std::size_t>(rank.number()));
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      overflowing room;
      failing_after fails;
      stages_of_chunks own(net, belay::recompute_all{});
      belay::pipeline pipeline{mesh, table, belay::boundary<float>({rows, width})};
      pipeline.watch_actions(fails);
      const belay::stages_of_rank<belay::pipeline_stage<network>> stages(own.pointers);
      for (auto number : run.steps(3)) {
        const batch data(number);
        if (!run.rehearsing() && rank.number() == 0) numbers.push_back(number);
        const std::size_t trials = run.rehearsing() || rank.size() > 1 ? 0 : pipeline.executed().size();
        for (fails.last = 0; fails.last < trials; ++fails.last) {
          CAPTURE(fails.last);
          belay::step failing{run.engine(), store};
          CHECK_THROWS_AS(pipeline.run(failing, stages, data.inputs(), data.loss()), thrown);
          failing.cut_off();
          CHECK(run.engine().activations().offsets().live_bytes() == 0);
          CHECK(run.engine().notes().used() == 0);
        }
        fails.last = ~std::size_t{0};
        belay::step step{run.engine(), store, room};
        pipeline.run(step, stages, data.inputs(), data.loss());
        auto outcome = std::move(step).commit(mesh, belay::target_tokens{micro_batches * rows});
        CHECK(run.engine().notes().used() == 0);
        if (!run.rehearsing()) CHECK(run.engine().activations().offsets().live_bytes() == 0);
        if (auto* ok = belay::committed(outcome)) {
          run.report(*ok, [&](double mean) { found.losses.push_back(mean); });
          optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
        }
      }
      if (!run.rehearsing())
        for (network& part : net.parts()) found.keep(part);
    });
    CHECK(numbers == std::vector<std::size_t>{1, 2, 2, 3});
    CHECK(found.losses == loop.losses);
    CHECK(found.values == loop.values);
  }
}
