// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank of a pipeline that ends in an action of its row: the others neither hang nor wonder who it was.
#include <doctest/doctest.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "test_length.hpp"

namespace schedule = belay::schedule;

namespace {

constexpr std::size_t rows = 2, width = 3, micro_batches = 4;
using hidden_view = belay::view<const float, 2>;

// Computes nothing, and ends its rank in the second micro-batch's action of one kind.
struct ending_stage {
  std::string_view ends_in;
  std::array<float, rows * width> values{};

  void act(std::string_view what, std::size_t micro_batch) const {
    if (what != ends_in || micro_batch != 1) return;
    if (what == "killed W") ::raise(SIGKILL);
    throw std::domain_error("this rank ends in " + std::string(what));
  }
  void forward(const auto& scope, hidden_view) { act("F", scope.micro_batch()); }
  void backward(const auto& scope, hidden_view) { act("B", scope.micro_batch()); }
  void backward_input(const auto& scope, hidden_view) { act("I", scope.micro_batch()); }
  void weights(const auto& scope) { act("W", scope.micro_batch()), act("killed W", scope.micro_batch()); }
  [[nodiscard]] hidden_view output(std::size_t m) const { return act("an exchange", m), whole(); }
  [[nodiscard]] hidden_view input_gradient(std::size_t m) const { return act("an exchange", m), whole(); }
  [[nodiscard]] hidden_view whole() const { return {values.data(), {rows, width}}; }
  void release(std::size_t) {}
};

// Rank `culprit` of a pipeline of three ends; `told` has the errors of the others.
auto ending_body(std::string_view ends_in, int culprit, std::array<std::string, 3>& told) {
  return [=, &told](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.pipeline = rank.size()}};
    ending_stage stage{!run.rehearsing() && rank.number() == culprit ? ends_in : ""};
    belay::pipeline pipeline{mesh, schedule::named_table(ends_in == "B" ? "1f1b" : "zb-h1", 3, micro_batches),
                             belay::boundary<float>({rows, width})};
    try {
      belay::step step{run.engine()};
      pipeline.run(step, stage);
      step.cut_off();
      mesh.world().barrier();  // for those that needed the others no more
    } catch (const belay::comm_error& problem) {
      const auto& about = problem.about();
      const bool at_once = about.seconds_waited < 5 && about.here.line > 0 && !about.operation.empty();
      if (at_once && problem.fault() == belay::comm_fault::peer_failed && about.culprits == std::vector{culprit})
        told[static_cast<std::size_t>(rank.number())] = problem.what();
      throw;
    }
  };
}

}  // namespace

namespace {

// Overwrites what it gives once it may, and counts what has come otherwise than the stages before and after gave it.
struct overwriting_stage {
  static constexpr std::size_t elements = 64 * 1024;  // enough to be read for a while
  using tensor = belay::view<const float, 1>;

  void forward(const auto& scope, tensor x) { expect(x, scope.micro_batch()), fill(outputs, scope.micro_batch()); }
  void backward(const auto& scope, tensor dout) {
    expect(dout, scope.micro_batch()), fill(gradients, scope.micro_batch());
  }
  void backward_input(const auto& scope, tensor dout) { backward(scope, dout); }
  void weights(const auto&) {}
  [[nodiscard]] tensor output(std::size_t m) const { return {outputs[m].data(), {elements}}; }
  [[nodiscard]] tensor input_gradient(std::size_t m) const { return {gradients[m].data(), {elements}}; }
  void let_go_of_output(std::size_t m) { outputs[m].assign(elements, -1); }
  void release(std::size_t m) { gradients[m].assign(elements, -1); }

  using tensors = std::array<std::vector<float>, micro_batches>;
  static void fill(tensors& of, std::size_t m) { of[m].assign(elements, static_cast<float>(m)); }
  void expect(tensor x, std::size_t m) {
    for (std::size_t i = 0; reads && i < x.size(); ++i) wrong += x[i] == static_cast<float>(m) ? 0 : 1;
  }
  bool reads = true;  // not in a rehearsal
  std::size_t wrong = 0;
  tensors outputs{}, gradients{};
};

}  // namespace

TEST_CASE("what a stage of one's own gives is read before the stage is told that it may overwrite it") {
  for (const char* name : {"1f1b", "zb-h1", "gpipe"}) {
    CAPTURE(name);
    std::array<std::size_t, 3> wrong{};
    belay::launch(belay::host::world{3}, [&](auto& rank, auto& run) {
      belay::mesh mesh{rank, {.pipeline = 3}};
      overwriting_stage stage{!run.rehearsing()};
      belay::pipeline pipeline{mesh, schedule::named_table(name, 3, micro_batches),
                               belay::boundary<float>({overwriting_stage::elements})};
      for ([[maybe_unused]] const std::size_t round : run.steps(5)) {
        belay::step step{run.engine()};
        pipeline.run(step, stage);
        static_cast<void>(std::move(step).commit());
      }
      wrong[static_cast<std::size_t>(rank.number())] = stage.wrong;
    });
    CHECK(wrong == std::array<std::size_t, 3>{});
  }
}

TEST_CASE("a rank that ends in any kind of action is named on all others, with what it did") {
  for (const int culprit : {0, 1, 2})
    for (const char* ends_in : {"F", "I", "W", "B", "an exchange"}) {
      CAPTURE(ends_in);
      std::array<std::string, 3> told;
      const auto body = ending_body(ends_in, culprit, told);
      const std::string said = "this rank ends in " + std::string(ends_in);
      CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{3, {.timeout = std::chrono::seconds(60)}}, body),
                           said.c_str(), std::domain_error);
      const std::string threw = "rank " + std::to_string(culprit) + " threw ";
      for (int rank = 0; rank < 3; ++rank) {
        const std::string& heard = told[static_cast<std::size_t>(rank)];
        CAPTURE(heard);
        CHECK((rank == culprit) == heard.empty());
        if (rank == culprit) continue;
        CHECK(heard.find(threw) != std::string::npos);
        CHECK(heard.ends_with(": " + said));
      }
    }
}

TEST_CASE("a process that is killed between its halves is named by its peers") {
  if (threads_are_sanitized) return;
  std::array<std::string, 3> told;
  try {
    belay::launch(belay::host::processes{3}, ending_body("killed W", 1, told));
    FAIL("nobody noticed");
  } catch (const belay::comm_error& problem) {
    CHECK(problem.fault() == belay::comm_fault::peer_failed);
    CHECK(problem.about().culprits == std::vector<int>{1});
    CHECK(problem.about().signal == SIGKILL);
  }
}
