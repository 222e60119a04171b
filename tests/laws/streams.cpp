// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Whatever the policy of the streams, training gives the same bits. A program that forgets an event does not:
// forgotten_events.cpp.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "laws/support/run.hpp"
#include "test_length.hpp"

using namespace laws;
using belay::stream_choice;
using belay::stream_policy;

namespace {

enum class grid { sample, full };

// Each mesh once, and over all of them each pair of a schedule, a recompute and a ZeRO stage; or each mesh with all of
// these.
std::vector<options> runs_of(grid which) {
  std::vector<options> out;
  std::size_t number = 0;
  for (int pp : {1, 2, 4}) {
    for (int ep : {1, 2, 4}) {
      for (int dp : {1, 2, 3}) {
        if (pp * ep * dp > 8) continue;
        const auto add = [&](std::size_t schedule, std::size_t recompute, std::size_t zero) {
          options run = small_run();
          run.mesh = {pp, dp, ep, 1};
          run.steps = 2;
          run.schedule = schedule % 2 == 0 ? "1f1b" : "gpipe";
          run.recompute = recompute % 2 == 0 ? recompute_kind::none : recompute_kind::full;
          run.zero = zero % 2 == 0 ? belay::zero_stage::optimizer_state : belay::zero_stage::none;
          out.push_back(run);
        };
        if (which == grid::sample) add(number, number / 2, number / 3);
        for (std::size_t i = 0; i < 8 && which == grid::full; ++i) add(i, i / 2, i / 4);
        ++number;
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("queued and adversarial streams train as immediate ones do, to the bit") {
  std::uint64_t seed = 0;
  const auto train_alike = [&seed](options run, std::uint64_t seeds) {
    const uneven_text source(run.model.vocab);
    const record expected = train<float>(run, source);
    const auto same = [&](const stream_choice& how) {
      run.streams = how;
      const difference apart = compare(expected, train<float>(run, source));
      INFO(run.mesh.text() << ", " << name(how.policy) << ", seed " << how.seed << ": " << apart.where << " differs by "
                           << apart.worst);
      CHECK(apart.worst == 0);
    };
    same({stream_policy::queued, 0});
    for (std::uint64_t i = 0; i < seeds; ++i) same({stream_policy::adversarial, seed++});
  };
  std::size_t number = 0;
  for (const options& run : runs_of(grid::sample))
    if (!only_a_sample() || number++ % 3 == 2) train_alike(run, is_soak() ? 20 : run.mesh.ranks() <= 2 ? 2 : 1);
  if (!only_a_sample()) CHECK(seed >= 20);
  if (!is_soak()) return;
  for (const options& run : runs_of(grid::full)) train_alike(run, 1);
}

TEST_CASE("one seed is one order") {
  options run = small_run();
  run.mesh = {2, 1, 2, 1};
  run.steps = 1;
  run.streams = {stream_policy::adversarial, 11};
  const uneven_text source(run.model.vocab);
  CHECK(compare(train<float>(run, source), train<float>(run, source)).worst == 0);
}

TEST_CASE("a step that fails on one rank ends all of them with the first cause, whatever is queued") {
  for (const stream_choice& how :
       {stream_choice{stream_policy::queued, 0}, stream_choice{stream_policy::adversarial, 3}}) {
    options run = small_run();
    run.mesh = {2, 2, 1, 1};
    run.streams = how;
    const uneven_text source(run.model.vocab);
    const auto fail_on_three = [&] {
      launch(run, [&](auto& rank, auto& self) {
        trainer<float, std::remove_reference_t<decltype(self)>> trained{run, rank, self, source};
        for (const std::size_t step : self.steps(3)) {
          if (!self.rehearsing() && rank.number() == 3 && step == 2) throw std::runtime_error("rank 3 has had enough");
          static_cast<void>(trained.train(step));
        }
      });
    };
    CHECK_THROWS_WITH_AS(fail_on_three(), "rank 3 has had enough", std::runtime_error);
  }
}
