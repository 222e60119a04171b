// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/evaluate.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "unit/parallel/support/toy_experts.hpp"
#include "unit/train/support/messages.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

void observe_batch(const auto& pass, network& net, const data& batch) {
  auto h = belay::observe(pass, net.first, batch.inputs());
  auto y = belay::observe(pass, net.second, h.out());
  belay::squared_error(pass, y.out(), batch.targets());
}

struct seen {
  std::vector<double> training, held_out;
  std::vector<std::uint64_t> counts;
};

// Trains two steps on the same batch, and evaluates on it before each. The rank of a world evaluates its share.
seen train_and_evaluate(int ranks) {
  seen out;
  belay::launch(belay::host::world{ranks}, [&out](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    const auto mine = belay::even_part(global_micro_batches, static_cast<std::size_t>(rank.size()),
                                       static_cast<std::size_t>(rank.number()));
    for (auto number : run.steps(2)) {
      static_cast<void>(number);
      const belay::evaluation found = belay::evaluate(run, mesh, [&] {
        for (std::size_t m = 0; m < mine.count; ++m) {
          belay::forward_only pass{run.engine()};
          observe_batch(pass, net, data(1, mine.first + m));
        }
      });
      if (run.rehearsing()) {
        CHECK(found.count == 0);
        CHECK(found.mean_loss() == 0);
      } else {
        CHECK(found.count == global_micro_batches * rows);
      }
      run.report(found, [&](double mean) { out.held_out.push_back(mean); });
      belay::step step{run.engine(), store};
      step.micro_batches(mine.count);
      for (std::size_t m = 0; m < mine.count; ++m) pass(step.micro_batch(m), net, data(1, mine.first + m));
      auto outcome = std::move(step).commit(mesh, belay::samples{global_micro_batches * rows});
      auto* ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      CHECK(ok->number() == number);  // a pass counts as no step
      run.report(*ok, [&](double mean) { out.training.push_back(mean); });
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
    }
    if (!run.rehearsing()) CHECK(run.engine().activations().offsets().live_bytes() == 0);
  });
  return out;
}

}  // namespace

TEST_CASE("an evaluation gives the loss of a step over the same batch, on all ranks") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const seen found = train_and_evaluate(ranks);
    REQUIRE(found.training.size() == 2);
    REQUIRE(found.held_out.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) CHECK(found.held_out[i] == doctest::Approx(found.training[i]).epsilon(1e-12));
    CHECK(found.held_out[1] < found.held_out[0]);
  }
}

TEST_CASE("what a run does only at times is in its plan, and leases nothing beyond it") {
  const auto body = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    std::size_t evaluations = 0;
    for (auto number : run.steps(4)) {
      if (run.every(3, number)) {
        ++evaluations;
        static_cast<void>(belay::evaluate(run, mesh, [&] {
          belay::forward_only pass{run.engine()};
          const data batch(1, 0);
          const auto a = belay::observe(pass, net.first, batch.inputs()),
                     b = belay::observe(pass, net.first, batch.inputs());
        }));
      }
      belay::step step{run.engine(), store};
      step.cut_off();
    }
    CHECK(evaluations == 1);
  };
  const auto planned = belay::rehearse(2, body);
  CHECK(planned.memory[0].activations >= 2 * rows * 12 * sizeof(float));
  CHECK_NOTHROW(belay::launch(belay::host::world{2}, body));
}

namespace {

// A participant whose room overflows until it is given more: it leases what it has room for from symmetric memory.
template <class Heap>
struct overflowing final : belay::participant {
  Heap* heap;
  std::size_t room = 2, used = 0, began = 0, withdrawn = 0;
  explicit overflowing(Heap* of) : heap(of) {}
  void begin(const belay::step_start&, belay::where) override { ++began, used = 0; }
  void use(std::size_t wanted) {
    const auto slot = heap->lease(room * 64, "rows");
    used = wanted;
    heap->release(slot);
  }
  void withdraw() noexcept override { ++withdrawn; }
  [[nodiscard]] belay::ballot findings() override { return {.needed_rows = used > room ? used : 0}; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return room; }
  void make_room(std::size_t rows, belay::where) override { room = rows; }
};

}  // namespace

TEST_CASE("where a pass of one rank overflows, all ranks repeat it with more room, and count it once") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const auto said = messages(
        [](auto& rank, auto& run) {
          belay::mesh mesh{rank, {.data = rank.size()}};
          network net;
          belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
          auto& heap = run.windows(mesh.world());
          overflowing<std::remove_reference_t<decltype(heap)>> participant{&heap};
          std::size_t passes = 0;
          const belay::evaluation found = belay::evaluate(run, mesh, [&] {
            belay::forward_only pass{run.engine(), participant};
            ++passes;
            observe_batch(pass, net, data(1, 0));
            participant.use(!run.rehearsing() && rank.number() == rank.size() - 1 ? 50 : 1);
          });
          CHECK(participant.began == passes);
          CHECK(participant.withdrawn == passes);
          if (!run.rehearsing()) {
            CHECK(passes == 2);
            CHECK(participant.room == 50);
            CHECK(found.count == static_cast<std::size_t>(rank.size()) * rows);
          }
        },
        ranks);
    for (const std::string& one : said) CHECK(one == "");
  }
}

TEST_CASE("a step that must be replayed is, whatever is evaluated before it comes again") {
  std::vector<std::size_t> numbers;
  const auto said = messages([&numbers](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    auto& heap = run.windows(mesh.world());
    overflowing<std::remove_reference_t<decltype(heap)>> participant{&heap};
    std::size_t passes = 0;
    for (auto number : run.steps(2)) {
      if (!run.rehearsing() && rank.number() == 0) numbers.push_back(number);
      belay::step step{run.engine(), store, participant};
      pass(step, net, data(number, 0));
      participant.use(run.rehearsing() ? 1 : 30);
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {});
      const auto found = belay::evaluate(run, mesh, [&] {
        ++passes;
        belay::forward_only pass{run.engine(), participant};
        participant.use(run.rehearsing() ? 1 : 70);
        observe_batch(pass, net, data(1, 0));
      });
      if (!run.rehearsing()) CHECK(found.count == 2 * rows);
    }
    if (run.rehearsing()) return;
    CHECK(participant.room == 70);
    CHECK(passes == 4);  // the first one twice, and no room is lost when the step comes again
  });
  for (const std::string& one : said) CHECK(one == "");
  CHECK(numbers == std::vector<std::size_t>{1, 1, 2});
}

TEST_CASE("an overflow that nobody repeats is named by the next step") {
  const auto said = messages([](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    auto& heap = run.windows(mesh.world());
    overflowing<std::remove_reference_t<decltype(heap)>> participant{&heap};
    {
      belay::forward_only pass{run.engine(), participant};
      participant.use(run.rehearsing() ? 1 : 50);
    }
    belay::step step{run.engine()};
    step.cut_off();
  });
  for (const std::string& one : said) CHECK(contains(one, "a forward-only pass overflowed, and was not repeated"));
}

TEST_CASE("a body that throws ends its evaluation, and the engine takes another") {
  belay::launch(belay::host::world{1}, [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
    const auto observe_one = [&] {
      belay::forward_only pass{run.engine()};
      observe_batch(pass, net, data(1, 0));
    };
    CHECK_THROWS_AS(static_cast<void>(belay::evaluate(run, mesh,
                                                      [&] {
                                                        belay::forward_only pass{run.engine()};
                                                        observe_batch(pass, net, data(1, 0));
                                                        throw 7;
                                                      })),
                    int);
    const auto found = belay::evaluate(run, mesh, observe_one);
    if (!run.rehearsing()) CHECK(found.count == rows);
    const belay::forward_only open{run.engine()};
    CHECK_THROWS_WITH_AS(belay::forward_only{run.engine()}, doctest::Contains("still open"), belay::usage_error);
  });
}

namespace {

struct leaving {
  struct residue {
    belay::view<float, 2> out;
  };
  residue forward(auto& frame, matrix x) {
    static_cast<void>(frame.open(belay::obligation_kind::dispatched_tokens, 8, x.shape(), belay::where::current()));
    return {belay::keep<float>(frame, x.shape())};
  }
};

}  // namespace

TEST_CASE("an obligation that a layer leaves open is named") {
  const auto body = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    leaving layer;
    static_cast<void>(belay::evaluate(run, mesh, [&] {
      belay::forward_only pass{run.engine()};
      const data batch(1, 0);
      const auto x = belay::observe(pass, layer, batch.inputs());
    }));
  };
  CHECK_THROWS_AS(belay::launch(belay::host::world{1}, body), belay::open_obligations);
}

TEST_CASE("experts that have too little room in an evaluation get it, and the loss is that of enough room") {
  constexpr std::size_t experts = 6, width = 8, tokens = 10;
  const auto loss_with_room_for = [](int ranks, std::size_t capacity, std::size_t& passes) {
    double loss = 0;
    belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.expert = rank.size()}};
      belay::expert_exchange exchange{run, mesh.expert(), {experts, 2, width, capacity}};
      toy::parameters<float> weights(experts, width, 3);
      toy::layer<float, decltype(exchange)> layer{weights, exchange, 2};
      const auto x = toy::some_numbers<float>(tokens * width, static_cast<std::size_t>(rank.number()));
      const std::vector<float> zeros(x.size());
      const auto found = belay::evaluate(run, mesh, [&] {
        if (!run.rehearsing() && rank.number() == 0) ++passes;
        belay::forward_only pass{run.engine(), exchange};
        const auto y = belay::observe(pass, layer, matrix{x.data(), {tokens, width}});
        belay::squared_error(pass, y.out(), matrix{zeros.data(), {tokens, width}});
      });
      if (run.rehearsing()) return;
      if (rank.number() == 0) loss = found.loss;
      CHECK(found.count == static_cast<std::size_t>(rank.size()) * tokens);
      CHECK(!exchange.overflow_unread());
      belay::step next{run.engine(), exchange};  // nothing is left of the passes
      next.cut_off();
    });
    return loss;
  };
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    std::size_t passes = 0, more = 0;
    const double enough = loss_with_room_for(ranks, 200, passes);
    CHECK(passes == 1);
    CHECK(enough > 0);
    CHECK(loss_with_room_for(ranks, 3, more) == enough);
    CHECK(more == 2);
  }
}

TEST_CASE("a dispatch through an exchange that its pass or step does not name is an error with the layer's name") {
  belay::launch(belay::host::world{1}, [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {}};
    belay::expert_exchange exchange{run, mesh.expert(), {4, 2, 8, 20}};
    toy::parameters<float> weights(4, 8, 3);
    toy::layer<float, decltype(exchange)> layer{weights, exchange, 2};
    const std::vector<float> x(10 * 8);
    const matrix rows_of_x{x.data(), {10, 8}};
    const auto expect_refused = [&](const auto& scope) {
      CHECK_THROWS_WITH_AS(static_cast<void>(belay::observe(scope, layer, rows_of_x)),
                           doctest::Contains("uses an expert exchange that its step does not name"),
                           belay::usage_error);
    };
    {
      belay::forward_only pass{run.engine()};
      expect_refused(pass);
    }
    {
      belay::forward_only pass{run.engine(), exchange};
      static_cast<void>(belay::observe(pass, layer, rows_of_x));
    }
    belay::step step{run.engine()};
    expect_refused(step);
    step.cut_off();
  });
}
