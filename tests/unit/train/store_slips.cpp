// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/messages.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

TEST_CASE("committed gradients that nobody applies are named, by the next step or by the loop, also after its last") {
  enum class way { discards, loop_ends, next_step };
  for (const way how : {way::discards, way::loop_ends, way::next_step}) {
    const auto said = messages([how](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = 2}};
      network net;
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      const auto drop_one = [&](std::size_t number) {
        belay::step step{run.engine(), store};
        pass(step, net, data(number, 0));
        auto outcome = std::move(step).commit(mesh, belay::samples{4});
        if (how == way::discards || run.rehearsing()) std::move(*belay::committed(outcome)).discard();
      };
      if (how == way::next_step) return drop_one(1), drop_one(2);
      for (auto number : run.steps(1)) drop_one(number);
    });
    for (const std::string& one : said)
      CHECK(contains(one, "gradients of step 1 were committed") == (how != way::discards));
  }
}

TEST_CASE("a step that is never committed ends the loop, and one that is cut off does not") {
  for (const bool cuts : {true, false}) {
    const auto said = messages([cuts](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = 2}};
      network net;
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      for (auto number : run.steps(2)) {
        // Where Clang does not see it: by its name the slip would not compile.
        using step_type = belay::step<std::remove_reference_t<decltype(run.engine())>, decltype(store)>;
        const auto step = std::make_unique<step_type>(run.engine(), store);
        pass(*step, net, data(number, 0));
        if (cuts || run.rehearsing()) step->cut_off();
      }
    });
    // One of them may be told by the other first.
    CHECK(std::any_of(said.begin(), said.end(), [](const std::string& one) {
            return contains(one, "a step ended without commit: commit it, or end it with step.cut_off()");
          }) == !cuts);
  }
}

TEST_CASE("a refusal names the step and a parameter whose gradient is not finite") {
  const auto said = messages([](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    for (auto number : run.steps(1)) {
      belay::step step{run.engine(), store};
      auto batch = data(number, 0);
      if (rank.number() == 1) batch.x[0] = std::numeric_limits<float>::quiet_NaN();
      pass(step, net, batch);
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
    }
  });
  for (const std::string& one : said) {
    CHECK(contains(one, "gradients are not finite"));
    CHECK(contains(one, "step 1 of this engine: parameter first.weight and 1 more"));
  }
}

TEST_CASE("a token is applied once, by its store's optimizer, before the next step") {
  const auto said = messages([](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net, other_net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}}, other{run, mesh, other_net, belay::zero<0>{}};
    belay::adamw optimizer{store}, wrong{other};
    const auto committed_step = [&](std::size_t number) {
      belay::step step{run.engine(), store};
      pass(step, net, data(number, 0));
      return std::move(step).commit(mesh, belay::samples{4});
    };
    if (run.rehearsing()) {
      auto outcome = committed_step(1);
      optimizer.apply(std::move(*belay::committed(outcome)), {});
    } else {
      {
        auto outcome = committed_step(1);
        auto* ok = belay::committed(outcome);
        CHECK_THROWS_AS(wrong.apply(std::move(*ok), {}), belay::usage_error);
        optimizer.apply(std::move(*ok), {});
        CHECK_THROWS_AS(optimizer.apply(std::move(*ok), {}), belay::usage_error);
      }
      auto stale = committed_step(2);
      auto later = committed_step(3);
      CHECK_THROWS_AS(optimizer.apply(std::move(*belay::committed(stale)), {}), belay::usage_error);
      optimizer.apply(std::move(*belay::committed(later)), {});
    }
  });
  for (const std::string& one : said) CHECK(one == "");
}

TEST_CASE("a parameter of which a step hears nothing, or too much, is named") {
  const auto said = messages(
      [](auto& rank, auto& run) {
        belay::mesh mesh{rank, {.data = 1}};
        network net;
        belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
        belay::step step{run.engine(), store};
        net.second.silent = !run.rehearsing();
        pass(step, net, data(1, 0));
        static_cast<void>(std::move(step).commit(mesh, belay::samples{2}));
      },
      1);
  CHECK(contains(said[0], "parameter second.weight misses micro-batch 0"));
  CHECK(!contains(said[0], "first.weight"));

  const auto twice = messages(
      [](auto& rank, auto& run) {
        belay::mesh mesh{rank, {.data = 1}};
        network net;
        belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
        belay::step step{run.engine(), store};
        pass(step, net, data(1, 0));
        if (!run.rehearsing()) pass(step, net, data(1, 1));
        static_cast<void>(std::move(step).commit(mesh, belay::samples{2}));
      },
      1);
  CHECK(contains(twice[0], "contributed to parameter second.weight twice"));
}

TEST_CASE("the number of micro-batches is said before the first backward") {
  const auto said = messages(
      [](auto& rank, auto& run) {
        belay::mesh mesh{rank, {.data = 1}};
        network net;
        belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
        belay::step step{run.engine(), store};
        pass(step, net, data(1, 0));
        if (!run.rehearsing()) step.micro_batches(2);
        std::move(step).cut_off();
      },
      1);
  CHECK(contains(said[0], "before the first backward"));
}

TEST_CASE("ranks that disagree are named, on every rank") {
  SUBCASE("first values of other seeds") {
    for (const std::string& one : messages(
             [](auto&rank, auto&run) {
               belay::mesh mesh{rank, {.data = 3}};
               network net;
               belay::parameter_store store{run, mesh, net, belay::zero<1>{},
                                            belay::store_options{.seed = rank.number() == 1 ? 2U : 1U}};
               belay::step step{run.engine(), store};
               pass(step, net, data(1, 0));
               static_cast<void>(std::move(step).commit(mesh, belay::samples{2}));
             },
             3))
      CHECK(contains(one, "ranks 0, 2 and rank 1 begin with different values of parameter first.weight"));
  }
  SUBCASE("a local divisor for a global one") {
    for (const std::string& one : messages([](auto&rank, auto&run) {
           belay::mesh mesh{rank, {.data = 2}};
           network net;
           belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
           belay::step step{run.engine(), store};
           pass(step, net, data(1, 0));
           static_cast<void>(
               std::move(step).commit(mesh, belay::samples{10 + static_cast<std::size_t>(rank.number())}));
         }))
      CHECK(contains(one, "differ between ranks (rank 0: 10; rank 1: 11)"));
  }
  SUBCASE("a participant that one of them forgets, or names elsewhere") {
    for (
        const std::string& one : messages([](auto&rank, auto&run) {
          belay::mesh mesh{rank, {.data = 2}};
          network net, other_net;
          belay::parameter_store store{run, mesh, net, belay::zero<0>{}}, other{run, mesh, other_net, belay::zero<0>{}};
          const auto both = [&](auto& first, auto& second) {
            belay::step step{run.engine(), first, second};
            pass(step, net, data(1, 0));
            pass(step, other_net, data(1, 0));
            static_cast<void>(std::move(step).commit(mesh, belay::samples{2}));
          };
          if (rank.number() == 0 || run.rehearsing()) {
            both(store, other);
          } else {
            belay::step step{run.engine(), store};
            pass(step, net, data(1, 0));
            static_cast<void>(std::move(step).commit(mesh, belay::samples{2}));
          }
        }))
      CHECK(contains(one, "rank 0 and rank 1 run different steps: the participants"));
  }
  SUBCASE("a participant that one of them forgets later") {
    for (
        const std::string& one : messages([](auto&rank, auto&run) {
          belay::mesh mesh{rank, {.data = 2}};
          network net, other_net;
          belay::parameter_store store{run, mesh, net, belay::zero<0>{}}, other{run, mesh, other_net, belay::zero<0>{}};
          for (auto number : run.steps(2)) {
            if (number == 1 || rank.number() == 0) {
              belay::step step{run.engine(), store, other};
              pass(step, net, data(1, 0));
              pass(step, other_net, data(1, 0));
              auto outcome = std::move(step).commit(mesh, belay::samples{2});
              std::move(*belay::committed(outcome)).discard();
            } else {
              belay::step step{run.engine(), store};
              pass(step, net, data(1, 0));
              auto outcome = std::move(step).commit(mesh, belay::samples{2});
              std::move(*belay::committed(outcome)).discard();
            }
          }
        }))
      CHECK(contains(one, "rank 0 and rank 1 run different steps: the participants"));
  }
  SUBCASE("other arguments of the optimizer, in the next step") {
    for (const std::string& one : messages([](auto&rank, auto&run) {
           belay::mesh mesh{rank, {.data = 2}};
           network net;
           belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
           belay::adamw optimizer{store};
           for (auto number : run.steps(3)) {
             belay::step step{run.engine(), store};
             pass(step, net, data(number, 0));
             auto outcome = std::move(step).commit(mesh, belay::samples{2});
             if (auto* ok = belay::committed(outcome))
               optimizer.apply(std::move(*ok), {.learning_rate = 1e-3 * (1 + rank.number())});
           }
         }))
      CHECK(contains(one, "rank 0 and rank 1 run different steps"));
  }
}

TEST_CASE("a refusal that nobody reads ends the loop; one that is read does not") {
  for (const bool reads : {true, false}) {
    std::atomic<int> after = 0;
    const auto said = messages([&after, reads](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = 2}};
      network net;
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      belay::adamw optimizer{store};
      for (auto number : run.steps(2)) {
        data batch(number, 0);
        if (number == 1 && rank.number() == 1) batch.x[0] = std::numeric_limits<float>::quiet_NaN();
        belay::step step{run.engine(), store};
        pass(step, net, batch);
        auto outcome = std::move(step).commit(mesh, belay::samples{4});
        if (reads && belay::refused(outcome) != nullptr) continue;
        if (auto* ok = belay::committed(outcome)) {
          optimizer.apply(std::move(*ok), {});
          if (!run.rehearsing()) ++after;
        }
      }
    });
    CHECK(after == (reads ? 2 : 0));
    for (const std::string& one : said) CHECK(contains(one, "gradients are not finite") == !reads);
  }
}

TEST_CASE("all ranks refuse a step in which one of them lost a handle, at once, and run the next one") {
  constexpr bool throws = belay::checked(belay::check_level::local);
  for (const belay::axes& axes : {belay::axes{.data = 2}, belay::axes{.pipeline = 2}}) {
    std::atomic<int> refused = 0, committed = 0;
    const auto said = messages([&](auto& rank, auto& run) {
      belay::mesh mesh{rank, axes};
      const std::string stage = axes.pipeline == 2 && rank.number() == 1 ? "second." : "";
      network net{{{stage + "first.weight", {12, 7}}}, {{stage + "second.weight", {3, 12}}}};
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      for (auto number : run.steps(2)) {
        belay::step step{run.engine(), store};
        const data batch(number, 0);
        pass(step, net, batch);
        if (number == 1 && rank.number() == 1 && !run.rehearsing()) {
          auto lost = belay::forward(step, net.first, belay::constant(matrix{batch.x, {rows, columns}}));
          belay::handle_store<decltype(lost)> store_of_lost{1};
          store_of_lost.keep(0, std::move(lost));
        }
        auto outcome = std::move(step).commit(mesh, belay::samples{4});
        if (const auto* no = belay::refused(outcome)) refused += static_cast<int>(no->findings.open_obligations);
        if (auto* ok = belay::committed(outcome)) {
          if (!run.rehearsing()) ++committed;
          std::move(*ok).discard();
        }
      }
    });
    CHECK(contains(said[1], "backward was never called") == throws);
    CHECK(said[0].empty());
    CHECK(refused == (throws ? 0 : 2));
    CHECK(committed == (throws ? 0 : 2));
  }
}

TEST_CASE("a gradient is added to in a backward, and of a parameter that something reduces") {
  struct adds_too_early {
    belay::parameter<float> weight{"early", {1, 1}};
    struct residue {
      belay::view<float, 2> out;
    };
    static const char* name() { return "eager"; }
    residue forward(belay::frame<belay::host_engine>& frame, matrix) { return {frame.add_to(weight)}; }
    void backward(belay::frame<belay::host_engine>&, residue&&, matrix, belay::view<float, 2>) {}
  };
  belay::tier_meter meter;
  belay::host_engine engine{belay::host_pages{1 << 16}, meter};
  belay::step step{engine};
  adds_too_early layer;
  const float x = 1;
  try {
    static_cast<void>(belay::observe(step, layer, matrix{&x, {1, 1}}));
    FAIL("it was not refused");
  } catch (const belay::usage_error& error) {
    CHECK(contains(error.what(), "parameter early is added to in a forward of layer 'eager'"));
  }
  linear alone{{"alone", {1, 1}}};
  float value = 2;
  alone.weight.bind(&value, nullptr);
  auto y = belay::forward(step, alone, matrix{&x, {1, 1}});
  try {
    static_cast<void>(std::move(y).backward(matrix{&x, {1, 1}}));
    FAIL("it was not refused");
  } catch (const belay::usage_error& error) {
    CHECK(contains(error.what(), "parameter alone is added to in layer"));
  }
  step.cut_off();
}

namespace {
struct list_of_one {
  network* net;
  void for_each_parameter(auto&& visit) { visit(net->first.weight); }
};
}  // namespace

TEST_CASE("a parameter that the model does not list is named where it is read") {
  CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{1},
                                     [](auto& rank, auto& run) {
                                       belay::mesh mesh{rank, {}};
                                       network net;
                                       list_of_one listed{&net};
                                       belay::parameter_store store{run, mesh, listed, belay::zero<0>{}};
                                       for ([[maybe_unused]] auto number : run.steps(1)) {
                                         belay::step step{run.engine(), store};
                                         auto h = belay::forward(step, net.first, belay::constant(data(0, 0).inputs()));
                                         auto y = belay::forward(step, net.second, h.out());
                                         std::move(y).discard("not reached");
                                         std::move(h).discard("not reached");
                                         step.cut_off();
                                       }
                                     }),
                       doctest::Contains("parameter second.weight is read in layer 'linear', and has no memory"),
                       belay::usage_error);
}

TEST_CASE("a recomputed layer takes an input without gradient") {
  trained plain, again;
  const auto body = [](trained& out, auto wrap) {
    return [&out, wrap](auto& rank, auto& run) {
      belay::mesh mesh{rank, {}};
      network net;
      belay::parameter_store store{run, mesh, net, belay::zero<0>{}};
      belay::adamw optimizer{store};
      auto&& first = wrap(net.first);
      for (auto number : run.steps(3)) {
        const data batch(number, 0);
        belay::step step{run.engine(), store};
        auto h = belay::forward(step, first, belay::constant(batch.inputs()));
        auto y = belay::forward(step, net.second, h.out());
        auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
        auto outcome = std::move(step).commit(mesh, belay::samples{2});
        if (auto* ok = belay::committed(outcome)) {
          run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
          optimizer.apply(std::move(*ok), {.learning_rate = 1e-2});
        }
      }
    };
  };
  belay::launch(belay::host::world{1}, body(
                                           plain, [](auto& layer) -> auto& { return layer; }));
  belay::launch(belay::host::world{1}, body(again, [](auto& layer) { return belay::recompute{layer}; }));
  REQUIRE(plain.losses.size() == 3);
  CHECK(plain.losses == again.losses);
}
