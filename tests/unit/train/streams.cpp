// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer over streams of every policy: the same losses, and the first cause where a rank fails with work in flight.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/belay.hpp"
#include "test_length.hpp"
#include "unit/train/support/linear.hpp"

namespace {

using namespace std::chrono_literals;
using belay::stream_choice;
using belay::stream_policy;
using train_bench::linear;

struct network {
  linear first{{"first.weight", {32, 16}}}, second{{"second.weight", {4, 32}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

const stream_choice policies[] = {
    {}, {stream_policy::queued, 0}, {stream_policy::adversarial, 0}, {stream_policy::adversarial, 9}};

// Trains three steps of three micro-batches. `between(rank, run, step)` is called between the two backwards of the
// last.
template <class World, class Between>
std::vector<double> train(World&& world, const stream_choice& how, const Between& between) {
  std::vector<double> losses;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<1>{}, {.bucket_bytes = 512}};
    belay::adamw optimizer{store};
    std::vector<float> inputs(3 * 8 * 16), targets(3 * 8 * 4);
    for (auto number : run.steps(3)) {
      if (!run.rehearsing()) {
        std::mt19937 random(static_cast<unsigned>(10 * number + static_cast<std::size_t>(rank.number())));
        for (auto* values : {&inputs, &targets})
          for (float& x : *values) x = static_cast<float>(random() % 100) / 100;
      }
      // A function: branches beside handles are more than Clang's -Wconsumed always follows.
      const auto meanwhile = [&]([[maybe_unused]] std::size_t m) {
        if (!run.rehearsing())
          if (m == 2) between(rank, run, number);
      };
      belay::step step{run.engine(), store};
      step.micro_batches(3);
      for (std::size_t m = 0; m < 3; ++m) {
        const belay::view<const float, 2> x{inputs.data() + m * 8 * 16, {8, 16}}, t{targets.data() + m * 8 * 4, {8, 4}};
        auto h = belay::forward(step.micro_batch(m), net.first, belay::constant(x));
        auto y = belay::forward(step.micro_batch(m), net.second, h.out());
        auto [loss, grad] = belay::squared_error(step.micro_batch(m), y.out(), t);
        grad = std::move(y).backward(grad);
        meanwhile(m);
        std::move(h).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{24 * static_cast<std::uint64_t>(rank.size())});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { losses.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      }
    }
  };
  belay::launch(world, body, {.streams = how});
  return losses;
}

}  // namespace

constexpr auto nothing = [](auto&, auto&, std::size_t) {};

TEST_CASE("every policy trains alike, on any number of ranks") {
  for (int ranks : {1, 2, 3}) {
    const std::vector<double> expected = train(belay::host::world{ranks}, {}, nothing);
    REQUIRE(expected.size() == 3);
    std::vector<stream_choice> all{{}, {stream_policy::queued, 0}};
    for (std::uint64_t seed = 0; seed < 20; ++seed) all.push_back({stream_policy::adversarial, seed});
    for (const stream_choice& how : all) {
      INFO(ranks << " ranks, " << name(how.policy) << ", seed " << how.seed);
      CHECK(train(belay::host::world{ranks}, how, nothing) == expected);
    }
  }
}

TEST_CASE("a rank that throws with work in flight ends all, at once and with its own words") {
  for (const stream_choice& how : policies) {
    INFO(name(how.policy) << ", seed " << how.seed);
    const auto fail = [](auto& rank, auto&, std::size_t step) {
      if (rank.number() == 1 && step == 2) throw std::runtime_error("rank 1 has had enough");
    };
    CHECK_THROWS_WITH_AS(train(belay::host::world{3}, how, fail), "rank 1 has had enough", std::runtime_error);
  }
}

TEST_CASE("a kernel or a copy that does not end is a timeout at the commit that waits for it, and names its rank") {
  for (int ranks : {1, 2}) {
    for (const bool copies : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(copies);
      const auto get_stuck = [&](auto& rank, auto& run, std::size_t step) {
        if (rank.number() != 0 || step != 2) return;
        // Until the world has failed: what runs for ever cannot be stopped.
        const auto stuck = [world = rank.template backend<belay::host::rank>()->state().get()] {
          while (!world->aborted()) std::this_thread::yield();
        };
        copies ? run.engine().copies().run(stuck) : run.engine().compute().run(stuck);
      };
      try {
        train(belay::host::world{ranks, {.timeout = 100ms}}, {stream_policy::queued, 0}, get_stuck);
        FAIL("nobody noticed");
      } catch (const belay::comm_error& problem) {
        CHECK(problem.fault() == belay::comm_fault::timeout);
        CHECK(problem.about().culprits == std::vector<int>{0});
        if (ranks > 1) continue;  // the others' own deadline may be first
        const std::string what = problem.what();
        CHECK(what.find(copies ? "rank 0 waits for its copy stream, which runs '"
                               : "rank 0 waits for its compute stream, which runs '") != std::string::npos);
        CHECK(what.find("streams.cpp:") != std::string::npos);
      }
    }
  }
}

namespace {

// Has memory that queued work writes, as an exchange has: whether that work was over when the step withdrew.
struct written_by_work final : belay::participant {
  std::atomic<bool> began{false}, over{false};
  bool was_over = false;
  void begin(const belay::step_start&, belay::where) override {}
  void withdraw() noexcept override { was_over = over; }
  [[nodiscard]] std::uint64_t fingerprint() const override { return 0; }
};

}  // namespace

TEST_CASE("what a participant withdraws in a step that an exception ends, no work of the step writes any more") {
  written_by_work part;
  const auto body = [&](auto&, auto& run) {
    belay::step step{run.engine(), part};
    if (run.rehearsing()) return step.cut_off();
    run.engine().compute().run([&part] {
      part.began = true;
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      part.over = true;
    });
    while (!part.began) std::this_thread::yield();
    throw std::runtime_error("enough");
  };
  CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{1}, body, {.streams = {stream_policy::queued, 0}}), "enough",
                       std::runtime_error);
  CHECK(part.was_over);
}

TEST_CASE("a process that ends or is killed with work in flight is named by its peers" *
          doctest::skip(threads_are_sanitized)) {
  for (stream_policy how : {stream_policy::immediate, stream_policy::queued}) {
    for (const bool killed : {false, true}) {
      const auto end = [&](auto& rank, auto&, std::size_t step) {
        if (rank.number() != 1 || step != 2) return;
        if (killed) ::raise(SIGKILL);
        ::_exit(3);
      };
      const char* const ending = killed ? ", killed" : ", ended";
      INFO(name(how) << ending);
      try {
        train(belay::host::processes{3}, {how, 0}, end);
        FAIL("nobody noticed");
      } catch (const belay::comm_error& problem) {
        CHECK(problem.fault() == belay::comm_fault::peer_failed);
        CHECK(problem.about().culprits == std::vector<int>{1});
        CHECK((killed ? problem.about().signal == SIGKILL : problem.about().exit_code == 3));
      }
    }
  }
}

TEST_CASE("what cannot be late on purpose is refused: ranks that are processes") {
  CHECK_THROWS_WITH_AS(train(belay::host::processes{2}, {stream_policy::adversarial, 1}, nothing),
                       doctest::Contains("adversarial streams need ranks that are threads of one process"),
                       belay::usage_error);
}
