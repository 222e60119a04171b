// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Actions beside forwards and backwards: offload and reload, recompute, gather and release, reduce. Their text, the
// proof of each by its slips, and the time that they take beside the computes.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/report/schedule_chart.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;
using schedule::fault_kind;
using schedule::ticks;

namespace {

// One rank, as its row of text.
schedule::dynamic_table one_rank(const std::string& row, std::size_t micro_batches = 2) {
  return schedule::from_csv("belay-schedule 1,row,1," + std::to_string(micro_batches) + "\n" + row + "\n");
}
void slip(const std::string& row, fault_kind kind, const std::string& sentence) {
  CAPTURE(row);
  const auto found = belay::proof(one_rank(row));
  CHECK_FALSE(found.complete);
  CHECK_FALSE(found.valid());
  CHECK(found.reason.kind == kind);
  CHECK(belay::explain(found.reason) == sentence);
}

// A rule that writes exchanges, here none: all its actions stay.
struct with_all {
  static constexpr std::string_view name = "all";
  template <class Out>
  constexpr void operator()(Out& out, schedule::rank_position at) const {
    if (at.first()) {
      out(action::of_chunk(action_kind::gather));
      out(action::compute(action_kind::forward, 0));
      out(action::exchange().send(schedule::payload::activation, 0, 1));
      out(action::compute(action_kind::offload, 0));
      out(action::compute(action_kind::reload, 0));
      out(action::exchange().receive(schedule::payload::gradient, 0, 1));
      out(action::compute(action_kind::backward, 0));
      out(action::of_chunk(action_kind::release));
      out(action::of_chunk(action_kind::reduce));
    } else {
      out(action::exchange().receive(schedule::payload::activation, 0, 0));
      out(action::compute(action_kind::forward, 0));
      out(action::compute(action_kind::recompute, 0));
      out(action::compute(action_kind::input_gradient, 0));
      out(action::exchange().send(schedule::payload::gradient, 0, 0));
      out(action::compute(action_kind::weight_gradient, 0));
      out(action::of_chunk(action_kind::reduce));
    }
  }
};
// And one that leaves exchanges to be found.
struct computes_only {
  static constexpr std::string_view name = "computes";
  template <class Out>
  constexpr void operator()(Out& out, schedule::rank_position) const {
    out(action::compute(action_kind::forward, 0));
    out(action::compute(action_kind::offload, 0));
  }
};
constexpr auto all = schedule::generate<with_all, 2, 1>();
static_assert(belay::require_proven<all, 1>());

}  // namespace

TEST_CASE("a table with actions beside its computes is proven, written, read and drawn") {
  const std::string text = "belay-schedule 1,all,2,1\nU,F0,SA0>1,O0,R0,RG0<1,B0,S,G\nRA0<0,F0,K0,I0,SG0>0,W0,G\n";
  CHECK(schedule::to_csv(all) == text);
  CHECK(schedule::from_csv(text) == all);
  CHECK(schedule::draw_text(all).find("K0") != std::string::npos);
  CHECK(schedule::draw_svg(all).find("recompute of micro-batch 0") != std::string::npos);

  const std::string chunks = "belay-schedule 2,v,1,1,2,loop\nU,U.1,F0,F0.1,O0.1,R0.1,K0.1,B0.1,S.1,G.1,B0,S,G\n";
  CHECK(belay::proof(schedule::from_csv(chunks)).valid());
  CHECK(schedule::to_csv(schedule::from_csv(chunks)) == chunks);
  for (const char* const wrong : {"U0", "G0", "S.", "U.x", "O", "R", "K", "FB0", "U.1.1", "OA0>1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(static_cast<void>(one_rank(wrong)), doctest::Contains("is no action"), belay::input_error);
  }
}

TEST_CASE("a table without transfers gets them, and keeps what is beside its computes") {
  const auto table = schedule::from_csv("belay-schedule 1,x,2,2\nU,F0,O0,F1,R0,B0,B1,S,G\nF0,B0,F1,K1,B1,G\n");
  CHECK(belay::proof(table).valid());
  CHECK(schedule::to_csv(table).find("\nU,F0,SA0>1,O0,F1,SA1>1,RG0<1,R0,B0,RG1<1,B1,S,G\n") != std::string::npos);
  // PyTorch's names.
  const auto read = schedule::from_csv("0UNSHARD,0F0,0B0,0RESHARD,0REDUCE_GRAD\n");
  CHECK(schedule::to_csv(read) == "belay-schedule 1,csv,1,1\nU,F0,B0,S,G\n");
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::from_csv("0UNSHARD0,0F0,0B0\n")), doctest::Contains("is no compute"),
                       belay::input_error);
  CHECK_THROWS_WITH_AS(static_cast<void>(schedule::generate(computes_only{}, 1, 1)),
                       doctest::Contains("writes forwards and backwards only"), belay::usage_error);
}

TEST_CASE("an offload comes after the forward, and its reload before the backward") {
  CHECK(belay::proof(one_rank("F0,O0,F1,R0,I0,I1,W0,W1")).valid());
  slip("F0,O0,F1,B0,B1", fault_kind::backward_before_reload,
       "stage 0 runs the backward of micro-batch 0 before what its forward left is reloaded (action 3)");
  slip("F0,O0,F1,I0,R0,W0,B1", fault_kind::backward_before_reload,
       "stage 0 runs the backward of micro-batch 0 before what its forward left is reloaded (action 3)");
  slip("O0,F0,F1,R0,B0,B1", fault_kind::offload_misplaced,
       "stage 0 offloads micro-batch 0 (action 0) twice, or not between its forward and its backward");
  slip("F0,O0,O0,F1,R0,B0,B1", fault_kind::offload_misplaced,
       "stage 0 offloads micro-batch 0 (action 2) twice, or not between its forward and its backward");
  slip("F0,B0,O0,F1,B1", fault_kind::offload_misplaced,
       "stage 0 offloads micro-batch 0 (action 2) twice, or not between its forward and its backward");
  slip("F0,R0,F1,B0,B1", fault_kind::reload_misplaced,
       "stage 0 reloads micro-batch 0 (action 1) twice, or not between its offload and its backward");
  slip("F0,O0,R0,R0,F1,B0,B1", fault_kind::reload_misplaced,
       "stage 0 reloads micro-batch 0 (action 3) twice, or not between its offload and its backward");
}

TEST_CASE("a recompute comes once, after the forward and the reload, and before the input gradient") {
  CHECK(belay::proof(one_rank("F0,F1,K0,I0,K1,I1,W0,W1")).valid());
  const std::string sentence = " twice, or not between its forward, or its reload, and its backward";
  slip("K0,F0,F1,B0,B1", fault_kind::recompute_misplaced, "stage 0 recomputes micro-batch 0 (action 0)" + sentence);
  slip("F0,I0,K0,W0,F1,B1", fault_kind::recompute_misplaced, "stage 0 recomputes micro-batch 0 (action 2)" + sentence);
  slip("F0,K0,K0,B0,F1,B1", fault_kind::recompute_misplaced, "stage 0 recomputes micro-batch 0 (action 2)" + sentence);
  slip("F0,O0,K0,R0,B0,F1,B1", fault_kind::recompute_misplaced,
       "stage 0 recomputes micro-batch 0 (action 2)" + sentence);
}

TEST_CASE("a chunk that gathers its parameters has them at each compute but weight gradients, and lets go of them") {
  CHECK(belay::proof(one_rank("U,F0,F1,S,U,K0,I0,I1,S,W0,W1")).valid());
  slip("F0,U,F1,B0,B1,S", fault_kind::compute_before_gather,
       "stage 0 computes micro-batch 0 while its parameters are not gathered (action 0)");
  slip("U,F0,S,F1,U,B0,B1,S", fault_kind::compute_before_gather,
       "stage 0 computes micro-batch 1 while its parameters are not gathered (action 3)");
  slip("U,F0,F1,S,K0,U,B0,B1,S", fault_kind::compute_before_gather,
       "stage 0 computes micro-batch 0 while its parameters are not gathered (action 4)");
  slip("U,F0,U,F1,B0,B1,S", fault_kind::gather_twice, "stage 0 gathers parameters that are gathered (action 2)");
  slip("F0,F1,B0,B1,S", fault_kind::release_before_gather,
       "stage 0 releases parameters that are not gathered (action 4)");
  slip("U,F0,F1,B0,B1", fault_kind::release_missing, "stage 0 gathers its parameters and never releases them");
}

TEST_CASE("gradients of every chunk are reduced once, after its last weight gradient") {
  CHECK(belay::proof(one_rank("F0,F1,I0,I1,W0,W1,G")).valid());
  slip("F0,F1,I0,I1,W0,G,W1", fault_kind::weight_gradient_after_reduce,
       "stage 0 computes the weight gradient of micro-batch 1 after its gradients were reduced (action 6)");
  slip("F0,F1,B0,G,B1", fault_kind::weight_gradient_after_reduce,
       "stage 0 computes the weight gradient of micro-batch 1 after its gradients were reduced (action 4)");
  slip("F0,F1,B0,B1,G,G", fault_kind::reduce_twice, "stage 0 reduces its gradients twice (action 5)");
  const auto lacking = belay::proof(schedule::from_csv("belay-schedule 1,x,2,1\nF0,B0,G\nF0,B0\n"));
  CHECK(lacking.reason.kind == fault_kind::reduce_missing);
  CHECK(belay::explain(lacking.reason) == "stage 1 never reduces its gradients, and others do");
}

TEST_CASE("copies and collectives take time beside the computes, which wait for what they need") {
  const auto played = [](const std::string& row, const schedule::stage_costs& each) {
    const auto table = one_rank(row);
    schedule::timeline_player<schedule::dynamic_table, ticks> player(table);
    static_cast<void>(player.play_costs(schedule::equal_costs{{9, 9, 9, 9, 9, 9}, 0}));  // nothing stays of it
    const auto& found = player.play_costs(schedule::equal_costs{each, 0});
    CHECK(found.total == found.busy[0] + found.waiting[0]);
    return found.total;
  };
  // F0 F1 B0 B1: 2 + 2 + 4 + 4.
  CHECK(played("F0,O0,F1,R0,B0,B1", {2, 2, 2, 1, 0, 0}) == 12 + 1);  // the reload of 1 begins when F1 has ended
  CHECK(played("F0,O0,R0,F1,B0,B1", {2, 2, 2, 1, 0, 0}) == 12);      // over when F1 is
  CHECK(played("F0,O0,R0,F1,B0,B1", {2, 2, 2, 5, 0, 0}) == 2 + 10 + 8);
  CHECK(played("F0,K0,B0,F1,B1", {2, 2, 2}) == 12 + 2);
  CHECK(played("U,F0,F1,B0,B1,S", {2, 2, 2, 0, 3, 0}) == 12 + 3);
  CHECK(played("U,F0,F1,S,U,I0,I1,S,W0,W1", {2, 2, 2, 0, 3, 0}) == 12 + 3 + 3);
  CHECK(played("F0,F1,B0,B1,G", {2, 2, 2, 0, 0, 7}) == 12 + 7);
  // A chunk's gradients are reduced while another chunk computes.
  const auto table = schedule::from_csv("belay-schedule 2,x,1,1,2,v\nF0,F0.1,B0.1,G.1,B0,G\n");
  schedule::timeline_player<schedule::dynamic_table, ticks> player(table);
  CHECK(player.play_costs(schedule::equal_costs{{2, 2, 2, 0, 0, 3}, 0}).total == 12 + 3);
}

TEST_CASE("bytes that are offloaded are not kept, until they are reloaded") {
  const std::vector<schedule::stage_bytes> each(1, {100, 20, 3});
  const auto peak = [&](const std::string& row) { return schedule::peak_bytes(one_rank(row), 0, each); };
  CHECK(peak("F0,F1,B0,B1") == 206);
  CHECK(peak("F0,O0,F1,O1,R0,B0,R1,B1") == 103);
  CHECK(peak("F0,O0,F1,R0,B0,B1") == 206);
}
