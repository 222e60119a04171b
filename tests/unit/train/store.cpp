// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/store.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

template <int Stage>
trained train(int ranks, std::size_t steps = 5, double clip = 1e30) {
  trained out;
  belay::launch(belay::host::world{ranks}, training_body<Stage>(steps, out, clip));
  return out;
}

// Runs a body of two ranks; returns what each of them threw, or "".
template <class Body>
std::vector<std::string> messages(Body body, int ranks = 2) {
  std::vector<std::string> out(static_cast<std::size_t>(ranks));
  const auto caught = [&](auto& rank, auto& run) {
    if (run.rehearsing()) {
      body(rank, run);
    } else {
      try {
        body(rank, run);
      } catch (const belay::comm_error&) {  // of a peer that threw first
        throw;
      } catch (const std::exception& problem) {
        out[static_cast<std::size_t>(rank.number())] = problem.what();
        throw;
      }
    }
  };
  try {
    belay::launch(belay::host::world{ranks}, caught);
  } catch (const std::exception&) {
  }
  return out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a store trains: the loss falls, and dividing the optimizer's state changes no bit") {
  const trained one = train<0>(1, 30);
  CHECK(one.losses.back() < one.losses.front() / 4);
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const trained whole = train<0>(ranks), divided = train<1>(ranks);
    CHECK(whole.losses == divided.losses);
    CHECK(whole.norms == divided.norms);
    CHECK(whole.values == divided.values);
    REQUIRE(whole.values.size() == one.values.size());
    for (std::size_t i = 0; i < 5; ++i) CHECK(whole.losses[i] == doctest::Approx(one.losses[i]).epsilon(1e-5));
  }
}

TEST_CASE("ranks that are processes do the same") {
  const trained threads = train<1>(3);
  std::vector<double> losses;
  const auto body = [&](auto& rank, auto& run) {
    trained out;
    training_body<1>(5, out)(rank, run);
    if (!run.rehearsing()) {
      if (rank.number() == 0 && out.losses != threads.losses) throw belay::error("other losses", belay::where{});
    }
  };
  CHECK_NOTHROW(belay::launch(belay::host::processes{3}, body));
}

TEST_CASE("clipping scales by the norm of all gradients") {
  const trained free = train<1>(2, 3), clipped = train<1>(2, 3, 1e-3);
  CHECK(free.norms.front() == clipped.norms.front());
  CHECK(free.norms.front() > 1e-3);
  CHECK(free.values != clipped.values);
}

TEST_CASE("what a run leases at its peak is its plan, to the byte, and a second step leases nothing more") {
  for (const int ranks : {1, 3}) {
    trained out;
    const auto body = training_body<1>(4, out);
    const belay::rehearsal_result planned = belay::rehearse(ranks, body);
    std::vector<std::size_t> device(static_cast<std::size_t>(ranks)), host(device);
    belay::launch(belay::host::world{ranks}, [&](auto& rank, auto& run) {
      body(rank, run);
      if (!run.rehearsing()) {
        const auto number = static_cast<std::size_t>(rank.number());
        device[number] = run.meters()[belay::tier::device].peak_bytes();
        host[number] = run.meters()[belay::tier::host].peak_bytes();
      }
    });
    for (std::size_t r = 0; r < device.size(); ++r) {
      CHECK(device[r] == planned.plan.ranks()[r].peak_bytes(belay::tier::device));
      CHECK(host[r] == planned.plan.ranks()[r].peak_bytes(belay::tier::host));
    }
    CHECK(contains(planned.text(), "optimizer state"));
  }
}

TEST_CASE("a run that does not fit is refused before a body runs on a rank") {
  trained out;
  const auto body = training_body<0>(1, out);
  belay::launch_options options;
  options.budget[belay::tier::device] = 1000;
  try {
    belay::launch(belay::host::world{2}, body, options);
    FAIL("it was not refused");
  } catch (const belay::plan_refused& refused) {
    CHECK(contains(refused.what(), "parameters"));
    CHECK(contains(refused.what(), "short by"));
  }
  options.budget = {};
  options.available = 5000;  // each rank fits, both do not
  try {
    belay::launch(belay::host::world{2}, body, options);
    FAIL("it was not refused");
  } catch (const belay::plan_refused& refused) {
    CHECK(contains(refused.what(), "the 2 ranks of this machine need"));
    CHECK(contains(refused.what(), "5000"));
  }
  CHECK(out.losses.empty());
}

TEST_CASE("committed gradients that nobody applies are named by the next step") {
  for (const bool discards : {true, false}) {
    const auto said = messages([discards](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.data = 2}};
      network net;
      belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
      for (auto number : run.steps(2)) {
        belay::step step{run.engine(), store};
        pass(step, net, data(number, 0));
        auto outcome = std::move(step).commit(mesh, belay::samples{4});
        if (discards) std::move(*belay::committed(outcome)).discard();
      }
    });
    for (const std::string& one : said) CHECK(contains(one, "gradients of step 1 were committed") == !discards);
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
    CHECK(contains(error.what(), "parameter alone is added to, and has no memory"));
  }
  step.cut_off();
}

namespace {

// A participant whose room overflows until it is given more: it leases what it has room for from symmetric memory.
template <class Heap>
struct overflowing {
  Heap* heap;
  std::size_t room = 2, used = 0, began = 0;
  using committed_part = belay::no_committed_part;
  void begin(const belay::step_start&, belay::where) { ++began, used = 0; }
  void use(std::size_t rows) {
    const auto slot = heap->lease(room * 64, "rows");
    used = rows;
    heap->release(slot);
  }
  belay::no_committed_part finish(const auto&, const auto&, belay::where) { return {}; }
  void abandon(const auto&, belay::where) {}
  void withdraw() noexcept {}
  [[nodiscard]] belay::ballot findings() const {
    belay::ballot found;
    found.needed_rows = used > room ? used : 0;
    return found;
  }
  [[nodiscard]] std::uint64_t fingerprint() const { return room; }
  void make_room(std::size_t rows, belay::where) { room = rows; }
};

}  // namespace

TEST_CASE("a step that overflows comes again with the same number, and with room, in the objects that it had") {
  std::vector<std::size_t> numbers;
  const auto said = messages([&numbers](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 2}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}};
    belay::adamw optimizer{store};
    auto& heap = run.windows(mesh.world());
    overflowing<std::remove_reference_t<decltype(heap)>> participant{&heap};
    for (auto number : run.steps(3)) {
      if (!run.rehearsing() && rank.number() == 0) numbers.push_back(number);
      belay::step step{run.engine(), store, participant};
      pass(step, net, data(number, 0));
      participant.use(!run.rehearsing() && number >= 2 && rank.number() == 1 ? 50 : 1);
      auto outcome = std::move(step).commit(mesh, belay::samples{4});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {});
    }
    if (!run.rehearsing()) CHECK(participant.room == 50);
  });
  for (const std::string& one : said) CHECK(one == "");
  CHECK(numbers == std::vector<std::size_t>{1, 2, 2, 3});
}

namespace {

struct list_of_two {
  belay::parameter<float> a{"a", {5000, 3}}, b{"b", {77, 100}};
  bool has_a = true, has_b = true;
  void for_each_parameter(auto&& visit) {
    if (has_a) visit(a);
    if (has_b) visit(b);
  }
};

// The norm of a step whose gradients are the parameters' first values, where each stage has what `shares` gives it.
double norm_of_stages(int stages) {
  double found = 0;
  belay::launch(belay::host::world{stages}, [&found, stages](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = stages}};
    list_of_two model;
    if (stages == 2) (rank.number() == 0 ? model.has_b : model.has_a) = false;
    belay::parameter_store store{run, mesh, model, belay::zero<1>{}};
    belay::adamw optimizer{store};
    for (auto number : run.steps(1)) {
      static_cast<void>(number);
      belay::step step{run.engine(), store};
      model.for_each_parameter([&](auto& parameter) {
        if (!run.rehearsing())
          std::memcpy(parameter.gradient(), parameter.value(), parameter.local_size() * sizeof(float));
        parameter.contribution()->contribute(0, belay::where::current());
      });
      auto outcome = std::move(step).commit(mesh, belay::samples{3});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](const belay::step_summary& end) { found = end.norm; });
        optimizer.apply(std::move(*ok), {});
      }
    }
  });
  return found;
}

}  // namespace

TEST_CASE("the norm of a model in two pipeline stages has the bits of the norm of the whole") {
  const double whole = norm_of_stages(1);
  CHECK(whole > 1);
  CHECK(norm_of_stages(2) == whole);
}
