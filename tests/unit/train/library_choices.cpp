// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks whose libraries take other algorithms for one problem would have other bits. A commit names them.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/library_attention.hpp"
#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/core/dtype.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"

using answer = fakes::device_api::answer;

namespace {

constexpr std::size_t width = 8, most_rows = 64;
thread_local int this_rank = 0;

// Takes part in a step, and has no gradients.
struct bystander final : belay::participant {
  void begin(const belay::step_start&, belay::where) override {}
  [[nodiscard]] std::uint64_t fingerprint() const override { return 5; }
};

// The product of a step on a rank has so many rows.
using rows_of_step = std::size_t (*)(std::size_t step, int rank);

// How many steps of 4 are committed on all ranks; `refusal` is what a launch throws otherwise.
std::size_t committed_steps(fakes::device_api& api, rows_of_step rows, std::string& refusal) {
  std::vector<std::size_t> done(3);
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(3), {.slot_bytes = 512}), [&](auto& rank, auto& run) {
      this_rank = rank.number();
      const belay::mesh mesh{rank, {.data = rank.size()}};
      bystander other;
      const std::span<belay::bf16> x =
          run.template lease<belay::bf16>(belay::tier::device, 3 * most_rows * width, "operands");
      for (auto number : run.steps(4)) {
        belay::step step{run.engine(), other};
        const std::size_t height = rows(number, rank.number());
        const belay::operand<belay::bf16> a{x.data(), height, width, width};
        const belay::operand<belay::bf16> b{x.data() + most_rows * width, width, width, width};
        run.engine().kit().product(
            belay::product_call<belay::bf16>{{x.data() + 2 * most_rows * width, height, width, width}, a, b});
        auto outcome = std::move(step).commit(mesh, belay::samples{3});
        if (auto* const ok = belay::committed(outcome); ok != nullptr) std::move(*ok).discard();
        if (!run.rehearsing()) ++done[static_cast<std::size_t>(rank.number())];
      }
    });
  } catch (const belay::usage_error& problem) {
    refusal = problem.what();
  }
  CHECK(api.empty());
  CHECK(done[0] == done[1]);
  CHECK(done[1] == done[2]);
  return done[0];
}

// Rank 1 takes another algorithm for so many rows.
void let_rank_1_differ(fakes::device_api& api, std::size_t rows) {
  api.answers_of = [rows](const belay::cuda::product_problem& problem) {
    const bool other = this_rank == 1 && problem.rows == rows;
    return std::vector<answer>{{{}, other ? 2U : 1U, 0, belay::cuda::result_bits::repeated}};
  };
}

}  // namespace

TEST_CASE("ranks that take other algorithms for one product are named by the commit of its first step") {
  std::string refusal;
  fakes::device_api api;
  let_rank_1_differ(api, 16);
  const auto rows = [](std::size_t, int) -> std::size_t { return 16; };
  CHECK(committed_steps(api, rows, refusal) == 0);
  CAPTURE(refusal);
  CHECK(refusal.find("ranks 0, 2 and rank 1 compute a product [16, 8] = [16, 8] x [8, 8] of BF16 in BF16") !=
        std::string::npos);
  CHECK(refusal.find("in different ways") != std::string::npos);
}

TEST_CASE("a shape that comes late is compared when it comes, also where a rank has none that is new") {
  std::string refusal;
  fakes::device_api api;
  let_rank_1_differ(api, 24);
  const auto rows = [](std::size_t step, int rank) -> std::size_t { return step == 3 && rank != 0 ? 24 : 16; };
  CHECK(committed_steps(api, rows, refusal) == 2);
  CHECK(refusal.find("rank 1 and rank 2 compute a product [24, 8]") != std::string::npos);
}

TEST_CASE("ranks may multiply other shapes: only those of one problem are compared") {
  std::string refusal;
  fakes::device_api api;
  let_rank_1_differ(api, 24);
  const auto rows = [](std::size_t, int rank) -> std::size_t { return rank == 1 ? 24 : 16; };
  CHECK(committed_steps(api, rows, refusal) == 4);
  CHECK(refusal.empty());
}

TEST_CASE("ranks of which one attends by its own form, for want of an engine, are named") {
  std::atomic<int> named = 0;
  belay::host::world{3}.run([&](belay::host::rank& rank) {
    const belay::mesh mesh{rank, {.data = 3}};
    const belay::cuda::attention_problem problem{belay::cuda::attention_pass::forward, 2, 16, 4, 2, 8};
    belay::kit_choices chosen;
    chosen.add(problem.word(), rank.number() == 2 ? 0 : 77, problem.text());
    try {
      expect_agreement(mesh, 1, belay::where::current(), &chosen);
    } catch (const belay::usage_error& difference) {
      const std::string what = difference.what();
      named += what.find("ranks 0, 1 and rank 2 compute an attention forward of 2 sequences of 16, 4 heads of 8") !=
                       std::string::npos
                   ? 1
                   : 0;
    }
  });
  CHECK(named == 3);
}
