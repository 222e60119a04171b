// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trace by which parameters are prefetched is thrown away for ever: open-r1's issue 387, DeepSpeed's 6870, 5006,
// 5662. One order of modules was recorded, and cleared by the first step, evaluation or generated token that differed;
// nothing was prefetched until a complete step had been recorded again. See
// docs/explanation/field_failures/gather_order.md.
#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "failures/support/gather_orders.hpp"
#include "failures/support/on_host.hpp"
#include "unit/train/support/messages.hpp"

using namespace gather_orders;
using network_bench::contains;

TEST_CASE("two phases of different orders alternate, and every gather was started before its layer asked") {
  const found out = run_on(on_host{2}, between::evaluation, otherwise::never)[0];
  REQUIRE(out.steps.size() == 20);
  for (const gather_counts& step : out.steps) {
    CHECK(step.prefetched == 6);
    CHECK(step.in_order + step.missed == 0);
  }
  for (const gather_counts& pass : out.passes) {
    CHECK(pass.missed == 0);
    CHECK(pass.prefetched == 2);
    CHECK(pass.in_order == 1);  // the first: nothing knows that a pass begins
  }
  CHECK(hits_of_one_trace(out.calls) == 0);  // and in this run a trace is of no use
}

TEST_CASE("one call too many in a step is one miss, and the next step is as planned") {
  const found out = run_on(on_host{2}, between::nothing, otherwise::one_extra_call)[0];
  REQUIRE(out.steps.size() == 20);
  for (std::size_t i = 0; i < out.steps.size(); ++i) {
    CHECK(out.steps[i].missed == (i == 2 ? 1 : 0));
    if (i != 2) CHECK(out.steps[i].prefetched == 6);
  }
}

TEST_CASE("where gathers are collective, a call beside the plan on which all ranks agree is one miss of each") {
  for (const int ranks : {2, 3})
    for (const belay::stream_choice& streams :
         {belay::stream_choice{}, belay::stream_choice{belay::stream_policy::adversarial, 0}}) {
      const auto run = [&](otherwise what) {
        return run_on(on_host{ranks, streams}, between::nothing, what, gather_by::collectives);
      };
      const std::vector<found> plain = run(otherwise::never), all = run(otherwise::one_extra_call);
      for (const found& each : all) {
        REQUIRE(each.steps.size() == 20);
        for (std::size_t i = 0; i < 20; ++i) {
          CHECK(each.steps[i].missed == (i == 2 ? 1 : 0));
          CHECK(each.steps[i].prefetched + each.steps[i].in_order == 6);
          if (i != 2) CHECK(each.steps[i].prefetched == 6);
        }
      }
      CHECK(all[0].losses == plain[0].losses);  // to the bit
    }
}

TEST_CASE("generation of any length between the steps leaves them as planned") {
  const found out = run_on(on_host{3}, between::generation, otherwise::never)[0];
  for (const gather_counts& step : out.steps) CHECK(step.prefetched == 6);
  for (const gather_counts& passes : out.passes) CHECK(passes.missed == 0);
  CHECK(hits_of_one_trace(out.calls) == 0);
}

TEST_CASE("a rank that departs from the plan gathers alone: its misses, and nobody else's") {
  const belay::stream_choice policies[] = {
      {}, {belay::stream_policy::queued, 0}, {belay::stream_policy::adversarial, 0}};
  for (const int ranks : {2, 3})
    for (const belay::stream_choice& streams : policies) {
      const std::vector<found> plain = run_on(on_host{ranks, streams}, between::nothing, otherwise::never);
      for (const otherwise what : {otherwise::one_extra_call_on_rank_1, otherwise::another_layer_on_rank_1,
                                   otherwise::one_call_less_on_rank_1, otherwise::passes_on_rank_1}) {
        CAPTURE(static_cast<int>(what));
        const std::vector<found> all = run_on(on_host{ranks, streams}, between::nothing, what);
        for (std::size_t rank = 0; rank < all.size(); ++rank) {
          CAPTURE(rank);
          REQUIRE(all[rank].steps.size() == 20);
          const std::size_t planned = what == otherwise::one_call_less_on_rank_1 ? 7 : 6;
          for (std::size_t i = 0; i < 20; ++i) {
            const gather_counts& step = all[rank].steps[i];
            const bool departs = i == 2 && (rank == 1 || what == otherwise::another_layer_on_rank_1) &&
                                 what != otherwise::passes_on_rank_1;
            if (departs && what != otherwise::one_call_less_on_rank_1)
              CHECK(step.missed == 1);
            else
              CHECK(step.missed == 0);
            if (!departs) CHECK(step.prefetched == planned);
            if (departs) CHECK(step.prefetched + step.in_order >= 6);
          }
          // Five passes of three layers, of which the plan has none.
          CHECK(all[rank].passes[2].missed == (what == otherwise::passes_on_rank_1 && rank == 1 ? 15 : 0));
        }
        CHECK(all[0].losses == plain[0].losses);  // to the bit
      }
    }
}

TEST_CASE("where gathers are collective, an order that depends on the rank is named on all ranks, in that step") {
  for (const auto& [what, words] : departures)
    for (const int ranks : {2, 3}) {
      CAPTURE(words);
      std::vector<found> out;
      for (const std::string& each : told_of(on_host{ranks}, what, out)) CHECK(contains(each, words));
      for (const found& each : out) CHECK(each.steps.size() <= 2);
    }
}
