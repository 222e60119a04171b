// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/pipeline_stage.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/dtype.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"
#include "unit/parallel/support/staged_network.hpp"

using namespace staged;

namespace {

// A batch has no gradient, also one of bf16.
using bf16_batch = belay::view<const belay::bf16, 3>;
static_assert(belay::is_constant_input<decltype(belay::input_of(std::declval<const bf16_batch&>(), 0))>);

auto pipeline_of(const auto& mesh, bool gpipe = false) {
  const auto stages = static_cast<std::size_t>(mesh.shape().pipeline);
  return belay::pipeline{
      mesh, gpipe ? belay::schedule::gpipe(stages, micro_batches) : belay::schedule::one_f_one_b(stages, micro_batches),
      belay::boundary<float>({rows, width})};
}

template <class Rule>
void train_by_pipeline(int stages, bool gpipe, Rule rule, trained& out) {
  const auto make_runner = [gpipe, rule](auto& mesh, network& net) {
    return [stage = std::make_unique<belay::pipeline_stage<network>>(net, rule), pipeline = pipeline_of(mesh, gpipe)](
               const auto& step, const batch& data) mutable { pipeline.run(step, *stage, data.inputs(), data.loss()); };
  };
  belay::launch(belay::host::world{stages}, training_body(3, out, make_runner));
}

}  // namespace

TEST_CASE("a network in stages is a loop over its layers, bit for bit, whatever is recomputed") {
  trained loop;
  train_by_loop(3, loop);
  REQUIRE(loop.losses.size() == 3);
  CHECK(loop.norms[0] > 0.1);
  for (const int stages : {1, 2, 3}) {
    for (const bool gpipe : {false, true}) {
      CAPTURE(stages);
      CAPTURE(gpipe);
      trained none, all, second;
      train_by_pipeline(stages, gpipe, belay::recompute_none{}, none);
      train_by_pipeline(stages, gpipe, belay::recompute_all{}, all);
      train_by_pipeline(
          stages, gpipe, [](std::size_t number) { return number % 2 == 1; }, second);
      for (const trained* one : {&none, &all, &second}) {
        CHECK(one->losses == loop.losses);
        CHECK(one->norms == loop.norms);
        CHECK(one->values == loop.values);
      }
    }
  }
}

TEST_CASE("an output that is recomputed is not kept, and what a run leases at its peak is its plan") {
  const auto activations = [](int stages, auto rule) {
    trained out;
    const auto make_runner = [rule](auto& mesh, network& net) {
      return
          [stage = std::make_unique<belay::pipeline_stage<network>>(net, rule), pipeline = pipeline_of(mesh)](
              const auto& step, const batch& data) mutable { pipeline.run(step, *stage, data.inputs(), data.loss()); };
    };
    const auto body = training_body(3, out, make_runner);
    const belay::rehearsal_result planned = belay::rehearse(stages, body);
    belay::launch(belay::host::world{stages}, [&](auto& rank, auto& run) {
      body(rank, run);
      if (run.rehearsing()) return;
      const auto& plan = planned.plan.ranks()[static_cast<std::size_t>(rank.number())];
      CHECK(run.meters()[belay::tier::device].peak_bytes() == plan.peak_bytes(belay::tier::device));
    });
    return planned.memory[0].activations;
  };
  for (const int stages : {1, 2}) {
    const std::size_t none = activations(stages, belay::recompute_none{});
    const std::size_t half = activations(stages, [](std::size_t number) { return number % 2 == 0; });
    const std::size_t all = activations(stages, belay::recompute_all{});
    CHECK(all < half);
    CHECK(half < none);
  }
}

namespace {

// Overflows in its second step, once.
struct overflowing final : belay::participant {
  std::size_t steps = 0, room = 1;
  void begin(const belay::step_start& start, belay::where) override {
    if (start.micro_batches != 1) ++steps;  // a pipeline says how many there are
  }
  [[nodiscard]] belay::ballot findings() override { return {.needed_rows = steps == 2 && room == 1 ? 8U : 0U}; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return room; }
  void make_room(std::size_t rows, belay::where) override { room = rows; }
};

}  // namespace

TEST_CASE("a step that is replayed, or was cut off, leaves nothing in the stage") {
  trained loop;
  train_by_loop(3, loop);
  for (const int stages : {1, 2, 3}) {
    CAPTURE(stages);
    trained found;
    std::vector<std::size_t> numbers;
    belay::launch(belay::host::world{stages}, [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.pipeline = rank.size()}};
      network net(static_cast<std::size_t>(rank.number()), static_cast<std::size_t>(rank.size()));
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      overflowing room;
      auto pipeline = pipeline_of(mesh);
      belay::pipeline_stage stage{net};
      for (auto number : run.steps(3)) {
        const batch data(number);
        if (!run.rehearsing() && rank.number() == 0) numbers.push_back(number);
        if (!run.rehearsing() && stages == 1) {  // a loss that throws in the middle of the schedule
          try {
            belay::step failing{run.engine(), store};
            pipeline.run(failing, stage, data.inputs(), [&](const auto& scope, hidden_view logits) {
              if (scope.micro_batch() == 2) throw 7;
              return data.loss()(scope, logits);
            });
            failing.cut_off();
          } catch (int) {
          }
          CHECK(run.engine().activations().offsets().live_bytes() == 0);
        }
        belay::step step{run.engine(), store, room};
        pipeline.run(step, stage, data.inputs(), data.loss());
        auto outcome = std::move(step).commit(mesh, belay::target_tokens{micro_batches * rows});
        if (auto* ok = belay::committed(outcome)) {
          run.report(*ok, [&](const belay::step_summary& end) {
            found.losses.push_back(end.mean_loss());
            found.norms.push_back(end.norm);
          });
          optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
        }
      }
      if (!run.rehearsing()) found.keep(net);
    });
    CHECK(numbers == std::vector<std::size_t>{1, 2, 2, 3});
    CHECK(found == loop);
  }
}

TEST_CASE("handles that a stage lost are named by layer and micro-batch") {
  const auto body = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    network net(0, 1);
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    auto pipeline = pipeline_of(mesh);
    belay::pipeline_stage stage{net, belay::recompute_all{}};
    const batch data(1);
    belay::step step{run.engine(), store};
    try {
      pipeline.run(step, stage, data.inputs(), [&](const auto& scope, hidden_view logits) {
        if (scope.micro_batch() == 3) throw 7;
        return data.loss()(scope, logits);
      });
    } catch (int) {
    }
    const auto outcome = std::move(step).commit(mesh, belay::samples{1});  // a release refuses
    if (const auto* why = belay::refused(outcome))
      throw belay::open_obligations(why->list, static_cast<std::size_t>(why->findings.open_obligations), {});
  };
  try {
    belay::launch(belay::host::world{1}, body);
    FAIL("nobody named them");
  } catch (const belay::open_obligations& open) {
    const std::string text = open.what();
    CHECK(text.find("layer 5 'layer' (micro-batch 3") != std::string::npos);
    CHECK(text.find("'table' (micro-batch 3") != std::string::npos);
    CHECK(text.find("(micro-batch 2") == std::string::npos);
    CHECK(text.find("pipeline_stage.cpp") != std::string::npos);  // where the pipeline was run
    CHECK(open.count() == 8);
  }
}

TEST_CASE("a pipeline that is run again in the step that lost its handles names one") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    network net(0, 1);
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    auto pipeline = pipeline_of(mesh);
    belay::pipeline_stage stage{net};
    const batch data(1);
    belay::step step{run.engine()};
    const auto loss = [&](const auto& scope, hidden_view logits) {
      if (scope.micro_batch() == 0) throw 7;
      return data.loss()(scope, logits);
    };
    CHECK_THROWS_AS(pipeline.run(step, stage, data.inputs(), loss), int);
    CHECK_THROWS_WITH_AS(pipeline.run(step, stage, data.inputs(), loss),
                         doctest::Contains("that of layer 'table' (micro-batch 0)"), belay::usage_error);
    step.cut_off();
  });
}

TEST_CASE("a step of a pipeline allocates nothing after the first") {
  for (const int stages : {1, 2}) {
    trained out;
    std::vector<std::uint64_t> counts;
    counts.reserve(4);
    const auto make_runner = [&counts](auto& mesh, network& net) {
      return [&counts, counting = mesh.rank().number() == 0,
              stage = std::make_unique<belay::pipeline_stage<network>>(net, belay::recompute_all{}),
              pipeline = pipeline_of(mesh)](const auto& step, const batch& data) mutable {
        const std::uint64_t before = tools::heap_allocations();
        pipeline.run(step, *stage, data.inputs(), data.loss());
        if (!step.engine().rehearsing())
          if (counting) counts.push_back(tools::heap_allocations() - before);
      };
    };
    belay::launch(belay::host::world{stages}, training_body(4, out, make_runner));
    REQUIRE(counts.size() == 4);
    if (tools::heap_is_counted()) CHECK(counts[0] > 0);
    for (std::size_t i = 1; i < 4; ++i) CHECK(counts[i] == 0);
  }
}

TEST_CASE("a blocking transfer between stages allocates nothing after the first, also where streams are late") {
  std::vector<std::uint64_t> counts;
  counts.reserve(4);
  const auto body = [&counts](auto& rank, auto& run) {
    if (run.rehearsing()) return;
    const auto world = rank.world();
    std::vector<float> values(8);
    const int other = 1 - rank.number();
    const std::array transfers{rank.number() == 0 ? belay::p2p::send(other, std::span<const float>(values))
                                                  : belay::p2p::receive(other, std::span(values))};
    for (int i = 0; i < 4; ++i) {
      const std::uint64_t before = tools::heap_allocations();
      world.exchange(transfers);
      world.barrier();
      if (rank.number() == 0) counts.push_back(tools::heap_allocations() - before);
    }
  };
  belay::launch(belay::host::world{2}, body, {.streams = {belay::stream_policy::adversarial, 3}});
  REQUIRE(counts.size() == 4);
  for (std::size_t i = 1; i < 4; ++i) CHECK(counts[i] == 0);
}

namespace {

// Layers alone: the inputs of the pipeline are what they take, and the loss is of what they give.
struct layers_alone {
  std::deque<layer> all;
  layers_alone(std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) all.emplace_back(first + i);
  }
  [[nodiscard]] std::deque<layer>& layers() { return all; }
  void for_each_parameter(auto&& visit) {
    for (layer& one : all) one.for_each_parameter(visit);
  }
};

std::vector<double> losses_of_layers(int stages, bool by_view) {
  std::vector<double> out;
  std::vector<float> numbers(micro_batches * rows * width);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 11) / 8;
  const belay::view<float, 3> inputs{numbers.data(), {micro_batches, rows, width}};
  belay::launch(belay::host::world{stages}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = rank.size()}};
    const auto part =
        belay::even_part(4, static_cast<std::size_t>(rank.size()), static_cast<std::size_t>(rank.number()));
    layers_alone net(part.first, part.count);
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    belay::adamw optimizer{store};
    auto pipeline = pipeline_of(mesh);
    belay::pipeline_stage stage{net};
    struct : belay::action_observer {
      std::size_t actions = 0;
      void given(std::size_t number) override { actions += number == actions ? 1 : 0; }
    } watched;
    pipeline.watch_actions(watched);
    const auto loss = [&](const auto& scope, hidden_view y) {
      return belay::squared_error(scope, y, hidden_view(inputs[scope.micro_batch()]));
    };
    for (auto number : run.steps(3)) {
      static_cast<void>(number);
      watched.actions = 0;
      belay::step step{run.engine(), store};
      if (by_view)
        pipeline.run(step, stage, inputs, loss);
      else
        pipeline.run(
            step, stage, [&](std::size_t m) { return hidden_view(inputs[m]); }, loss);
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
      std::vector<belay::executed_action> row(pipeline.executed().begin(), pipeline.executed().end());
      // Its actions follow each other, an exchange where it was waited for.
      std::ranges::sort(row, {}, [](const auto& each) { return std::pair(each.begin, each.end); });
      bool whole = watched.actions == row.size() && row.size() >= 2 * micro_batches;
      for (std::size_t i = 0; i < row.size() && !run.rehearsing(); ++i)
        whole = whole && row[i].end >= row[i].begin && (i == 0 || row[i].begin == row[i - 1].end);
      if (!whole) throw std::logic_error("a row of a pipeline's table is not as it was run");
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { out.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
      }
    }
  });
  return out;
}

}  // namespace

TEST_CASE("a network of layers alone takes the inputs as they are, by a view or by a function") {
  const auto one = losses_of_layers(1, true);
  REQUIRE(one.size() == 3);
  CHECK(one[2] < one[0]);
  CHECK(losses_of_layers(1, false) == one);
  CHECK(losses_of_layers(2, true) == one);
  CHECK(losses_of_layers(3, false) == one);  // stages of 2, 1 and 1 layers
}

TEST_CASE("a part that does not belong to its stage, and a batch that is too small, are named") {
  const auto said = [](auto make_network, std::size_t batches, const char* what) {
    const auto body = [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.pipeline = rank.size()}};
      auto net = make_network(static_cast<std::size_t>(rank.number()));
      belay::parameter_store store{run, mesh, *net, belay::zero<0>{}};
      auto pipeline = pipeline_of(mesh);
      belay::pipeline_stage stage{*net};
      const batch data(1);
      belay::step step{run.engine(), store};
      pipeline.run(step, stage, data.inputs().rows(0, batches), data.loss());
      step.cut_off();
    };
    CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{2}, body), doctest::Contains(what), belay::usage_error);
  };
  const auto whole = [](std::size_t) { return std::make_unique<network>(0, 1); };
  const auto part = [](std::size_t rank) { return std::make_unique<network>(rank, 2); };
  const auto swapped = [](std::size_t rank) { return std::make_unique<network>(1 - rank, 2); };
  said(whole, micro_batches, "stage 0 of a pipeline of 2: its part of the network has the head");
  said(swapped, micro_batches, "stage 0 of a pipeline of 2: its part of the network lacks the embedding");
  said(part, micro_batches - 1, "the inputs of a pipeline have 3 micro-batches, and its schedule runs 4");
}

TEST_CASE("an evaluation over stages gives the loss of a network that is whole, and no host waits for other stages") {
  using belay::stream_policy;
  double whole = 0;
  const auto evaluate = [&](int stages, const belay::stream_choice& how) {
    CAPTURE(stages);
    CAPTURE(name(how.policy));
    std::barrier<> all_are_here(stages);
    std::atomic<bool> released{how.policy != stream_policy::queued};
    const auto body = [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.pipeline = rank.size()}};
      network net(static_cast<std::size_t>(rank.number()), static_cast<std::size_t>(rank.size()));
      belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
      auto pipeline = pipeline_of(mesh);
      belay::pipeline_stage stage{net, belay::recompute_all{}};
      const batch data(1);
      const auto found = belay::evaluate(run, mesh, [&] {
        for (std::size_t m = 0; m < micro_batches; ++m) {
          belay::forward_only pass{run.engine()};
          const bool first = !run.rehearsing() && !released;
          if (first) run.engine().compute().run([&released] { released.wait(false); });
          // The last micro-batch is shorter than the boundary.
          const std::size_t count = m + 1 < micro_batches ? rows : 1;
          pipeline.observe(pass, stage, data.inputs()[m].rows(0, count), [&](hidden_view logits) {
            CHECK(logits.extent(0) == count);
            belay::cross_entropy(pass, logits, data.targets_of(m).rows(0, count));
          });
          if (!first) continue;
          all_are_here.arrive_and_wait();  // and no kernel has run
          released = true;
          released.notify_all();
        }
      });
      if (run.rehearsing()) return;
      CHECK(found.count == (micro_batches - 1) * rows + 1);
      CHECK(found.loss > 1);
      if (whole == 0) whole = found.loss;
      CHECK(found.loss == whole);
      CHECK(run.engine().activations().offsets().live_bytes() == 0);
    };
    belay::launch(belay::host::world{stages}, body, {.streams = how});
  };
  evaluate(1, {});
  for (const int stages : {2, 3}) {
    for (const stream_policy how : {stream_policy::immediate, stream_policy::queued}) evaluate(stages, {how, 0});
    for (std::uint64_t seed = 0; seed < 4; ++seed) evaluate(stages, {stream_policy::adversarial, seed});
  }
}
