// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/parallel/proof.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "belay/parallel/schedule.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;
using schedule::transfer_direction;
using schedule::fault_kind;
using schedule::payload;

namespace {

// Sizes that every compiler proves within its default limits, in one expression.
static_assert(belay::proof(schedule::one_f_one_b<8, 32>()).valid());
static_assert(belay::proof(schedule::gpipe<8, 32>()).valid());
constexpr auto f1b1 = schedule::one_f_one_b<8, 32>();
constexpr auto all_then_all = schedule::gpipe<8, 32>();
static_assert(belay::require_proven<f1b1, 8>());
static_assert(belay::require_proven<all_then_all, 32>());
static_assert(belay::proof(f1b1).peak == 8 && belay::proof(all_then_all).peak == 32);

// Schedules of a user are rules too.
struct zero_bubble_like {
  static constexpr std::string_view name = "split";
  template <class Out>
  constexpr void operator()(Out& out, schedule::rank_position at) const {
    for (std::size_t i = 0; i < at.micro_batches; ++i) out(action::compute(action_kind::forward, i));
    for (std::size_t i = 0; i < at.micro_batches; ++i) out(action::compute(action_kind::input_gradient, i));
    for (std::size_t i = 0; i < at.micro_batches; ++i) out(action::compute(action_kind::weight_gradient, i));
  }
};
static_assert(belay::proof(schedule::generate<zero_bubble_like, 1, 3>()).valid());

using lists = std::vector<std::vector<action>>;

lists lists_of(const schedule::dynamic_table& table) {
  lists all;
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    all.emplace_back(table.actions(rank).begin(), table.actions(rank).end());
  }
  return all;
}

std::size_t find(const std::vector<action>& list, action_kind kind, std::size_t micro_batch) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == kind && list[i].micro_batch == micro_batch) return i;
  }
  FAIL("no such action");
  return 0;
}

auto prove(const lists& all, std::size_t micro_batches) {
  return belay::proof(schedule::make_table("wrong", micro_batches, all));
}

action receive(payload what, std::size_t micro_batch, std::size_t from) {
  return action::exchange().receive(what, micro_batch, from);
}
action send_action(payload what, std::size_t micro_batch, std::size_t to) {
  return action::exchange().send(what, micro_batch, to);
}
action forward(std::size_t micro_batch) { return action::compute(action_kind::forward, micro_batch); }
action backward(std::size_t micro_batch) { return action::compute(action_kind::backward, micro_batch); }

}  // namespace

TEST_CASE("1F1B and GPipe are proven for every size, fewer micro-batches than stages included") {
  for (std::size_t p = 1; p <= 9; ++p) {
    for (std::size_t m = 1; m <= 33; ++m) {
      const auto one = belay::proof(schedule::one_f_one_b(p, m));
      const auto all = belay::proof(schedule::gpipe(p, m));
      CAPTURE(p);
      CAPTURE(m);
      REQUIRE_MESSAGE(one.valid(), belay::explain(one.reason));
      REQUIRE_MESSAGE(all.valid(), belay::explain(all.reason));
      for (std::size_t stage = 0; stage < p; ++stage) {
        REQUIRE(one.peak_activations[stage] == std::min(m, p - stage));
        REQUIRE(all.peak_activations[stage] == m);
      }
      REQUIRE(one.peak == std::min(m, p));
      REQUIRE(one.reason == schedule::fault{});
      REQUIRE(belay::explain(one.reason).empty());
    }
  }
}

TEST_CASE("each backward that is left out is named") {
  for (const auto& good : {schedule::one_f_one_b(3, 5), schedule::gpipe(3, 5)}) {
    for (std::size_t stage = 0; stage < 3; ++stage) {
      for (std::size_t batch = 0; batch < 5; ++batch) {
        lists all = lists_of(good);
        const auto at = find(all[stage], action_kind::backward, batch);
        all[stage].erase(all[stage].begin() + static_cast<std::ptrdiff_t>(at));
        const auto result = prove(all, 5);
        CHECK_FALSE(result.complete);
        CHECK(result.matched);
        CHECK_FALSE(result.valid());
        CHECK(result.reason.kind == fault_kind::backward_missing);
        CHECK(result.reason.stage == stage);
        CHECK(result.reason.micro_batch == batch);
        CHECK(result.reason.action == schedule::nowhere);
        CHECK(belay::explain(result.reason) ==
              "stage " + std::to_string(stage) + " never runs the backward of micro-batch " + std::to_string(batch));
      }
    }
  }
}

TEST_CASE("a forward left out, a compute repeated or at the wrong place is named") {
  const auto good = lists_of(schedule::one_f_one_b(2, 3));
  lists all = good;
  all[1].erase(all[1].begin() + static_cast<std::ptrdiff_t>(find(all[1], action_kind::forward, 1)));
  CHECK(prove(all, 3).reason.kind == fault_kind::backward_before_forward);

  all = good;
  all[0].push_back(forward(2));
  CHECK(prove(all, 3).reason.kind == fault_kind::forward_twice);
  CHECK(prove(all, 3).reason.action == good[0].size());

  all = good;
  all[0].push_back(backward(2));
  CHECK(prove(all, 3).reason.kind == fault_kind::backward_twice);

  CHECK(prove({{backward(0)}}, 1).reason.kind == fault_kind::backward_before_forward);
  CHECK(prove({{}}, 1).reason.kind == fault_kind::forward_missing);
}

TEST_CASE("each slip of a backward in two halves has its own reason") {
  const auto input = [](std::size_t batch) { return action::compute(action_kind::input_gradient, batch); };
  const auto weight = [](std::size_t batch) { return action::compute(action_kind::weight_gradient, batch); };
  const auto slip = [](const std::vector<action>& row, std::size_t micro_batches, fault_kind kind,
                       const std::string& sentence) {
    const auto found = prove({row}, micro_batches);
    CHECK_FALSE(found.complete);
    CHECK_FALSE(found.valid());
    CHECK(found.reason.kind == kind);
    CHECK(belay::explain(found.reason) == sentence);
  };
  CHECK(prove({{forward(0), forward(1), input(0), input(1), weight(0), weight(1)}}, 2).valid());
  slip({forward(0), weight(0), input(0)}, 1, fault_kind::weight_gradient_before_input_gradient,
       "stage 0 computes the weight gradient of micro-batch 0 before its input gradient (action 1)");
  slip({forward(0), weight(0)}, 1, fault_kind::weight_gradient_before_input_gradient,
       "stage 0 computes the weight gradient of micro-batch 0 before its input gradient (action 1)");
  slip({forward(0), input(0), input(0), weight(0)}, 1, fault_kind::input_gradient_twice,
       "stage 0 computes the input gradient of micro-batch 0 twice (action 2)");
  slip({forward(0), input(0), weight(0), weight(0)}, 1, fault_kind::weight_gradient_twice,
       "stage 0 computes the weight gradient of micro-batch 0 twice (action 3)");
  slip({forward(0), input(0)}, 1, fault_kind::weight_gradient_missing,
       "stage 0 computes the input gradient of micro-batch 0 but never its weight gradient");
  slip({forward(0), input(0), backward(0)}, 1, fault_kind::backward_whole_and_halves,
       "stage 0 runs the backward of micro-batch 0 as a whole and in halves (action 2)");
  slip({forward(0), backward(0), input(0)}, 1, fault_kind::backward_whole_and_halves,
       "stage 0 runs the backward of micro-batch 0 as a whole and in halves (action 2)");
  slip({forward(0), backward(0), weight(0)}, 1, fault_kind::backward_whole_and_halves,
       "stage 0 runs the backward of micro-batch 0 as a whole and in halves (action 2)");
  slip({input(0), forward(0), weight(0)}, 1, fault_kind::backward_before_forward,
       "stage 0 runs the backward of micro-batch 0 before its forward (action 0)");
  slip({forward(0), forward(1), input(0), input(1), weight(1), weight(0)}, 2, fault_kind::weight_gradient_out_of_order,
       "stage 0 computes the weight gradient of micro-batch 0 after that of a later one (action 5); they are added in "
       "the order 0, 1, 2, ... so that gradients keep their bits");
  slip({forward(0), forward(1), input(1), input(0), weight(0), weight(1)}, 2, fault_kind::backward_out_of_order,
       "stage 0 runs the backward of micro-batch 0 after that of a later one (action 3); backwards run in the order 0, "
       "1, 2, ... so that gradients keep their bits");
  // A whole backward adds its weight gradient too.
  slip({forward(0), forward(1), input(0), backward(1), weight(0)}, 2, fault_kind::weight_gradient_out_of_order,
       "stage 0 computes the weight gradient of micro-batch 0 after that of a later one (action 4); they are added in "
       "the order 0, 1, 2, ... so that gradients keep their bits");
}

TEST_CASE("backwards out of micro-batch order are refused, because gradients would change their bits") {
  const auto result = prove({{forward(0), forward(1), backward(1), backward(0)}}, 2);
  CHECK_FALSE(result.complete);
  CHECK(result.deadlock_free);
  CHECK(result.reason.kind == fault_kind::backward_out_of_order);
  CHECK(result.reason.micro_batch == 0);
  CHECK(result.reason.action == 3);
}

TEST_CASE("two receives that changed places are refused where they meet the other order") {
  lists all = lists_of(schedule::gpipe(2, 3));
  // Stage 1: RA0, F0, RA1, ...
  REQUIRE(all[1][0] == receive(payload::activation, 0, 0));
  REQUIRE(all[1][2] == receive(payload::activation, 1, 0));
  std::swap(all[1][0], all[1][2]);
  const auto result = prove(all, 3);
  CHECK_FALSE(result.matched);
  CHECK_FALSE(result.complete);  // and so stage 1 would run the forward of 0 on the tensor of 1
  CHECK(result.reason.kind == fault_kind::order_mismatch);
  CHECK(result.reason.stage == 1);
  CHECK(result.reason.action == 0);
  CHECK(result.reason.micro_batch == 1);
  CHECK(result.reason.peer == 0);
  CHECK(result.reason.peer_micro_batch == 0);
}

TEST_CASE("a send without its receive and a receive without its send are refused") {
  lists all = lists_of(schedule::gpipe(2, 3));
  all[1].erase(all[1].begin() + 2);  // the receive of activation 1
  auto result = prove(all, 3);
  CHECK_FALSE(result.matched);
  CHECK_FALSE(result.deadlock_free);
  CHECK(result.reason.kind == fault_kind::send_unmatched);
  CHECK(result.reason.stage == 0);
  CHECK(result.reason.micro_batch == 1);
  CHECK(belay::explain(result.reason) ==
        "stage 0 sends the activation of micro-batch 1 to stage 1, which never receives it (action 3)");

  all = lists_of(schedule::gpipe(2, 3));
  all[0].erase(all[0].begin() + 1);  // the send of activation 0
  result = prove(all, 3);
  CHECK(result.reason.kind == fault_kind::receive_unmatched);
  CHECK(result.reason.stage == 1);
  CHECK(result.reason.micro_batch == 0);

  all = lists_of(schedule::gpipe(2, 3));
  all[0].push_back(send_action(payload::activation, 0, 1));
  all[1].push_back(receive(payload::activation, 0, 0));
  result = prove(all, 3);
  CHECK_FALSE(result.matched);
  CHECK(result.reason.kind == fault_kind::transfer_twice);
}

TEST_CASE("two neighbours that both send first deadlock under rendezvous") {
  // Right in every other respect: with sends that buffer, this would run.
  const lists all = {
      {forward(0), send_action(payload::activation, 0, 1), forward(1), send_action(payload::activation, 1, 1),
       receive(payload::gradient, 0, 1), backward(0), receive(payload::gradient, 1, 1), backward(1)},
      {receive(payload::activation, 0, 0), forward(0), backward(0), send_action(payload::gradient, 0, 0),
       receive(payload::activation, 1, 0), forward(1), backward(1), send_action(payload::gradient, 1, 0)}};
  const auto result = prove(all, 2);
  CHECK(result.complete);
  CHECK(result.matched);
  CHECK_FALSE(result.deadlock_free);
  CHECK(result.reason.kind == fault_kind::deadlock);
  CHECK(result.reason.stage == 0);
  CHECK(result.reason.action == 3);
  CHECK(result.reason.micro_batch == 1);
  CHECK(result.reason.peer == 1);

  // The same transfers in one exchange on each side run.
  lists grouped = all;
  grouped[0][3] = send_action(payload::activation, 1, 1).receive(payload::gradient, 0, 1);
  grouped[0].erase(grouped[0].begin() + 4);
  grouped[1][3] = send_action(payload::gradient, 0, 0).receive(payload::activation, 1, 0);
  grouped[1].erase(grouped[1].begin() + 4);
  CHECK(prove(grouped, 2).valid());
}

TEST_CASE("what crosses between two ranks deadlocks where both send first, each in an exchange of its own") {
  lists all = lists_of(schedule::named_table("zb-h2", 3, 6));
  for (auto& list : all) {
    std::vector<action> apart;
    for (const action& now : list) {
      if (now.transfers().size() < 2) {
        apart.push_back(now);
        continue;
      }
      for (const auto direction : {transfer_direction::send, transfer_direction::receive}) {
        for (const auto& moved : now.transfers()) {
          if (moved.direction != direction) continue;
          action single = action::exchange();
          single.transfer_count = 1;
          single.group[0] = moved;
          apart.push_back(single);
        }
      }
    }
    list = apart;
  }
  const auto result = prove(all, 6);
  CHECK(result.complete);
  CHECK(result.matched);
  CHECK(result.reason.kind == fault_kind::deadlock);
}

TEST_CASE("a tensor that is used before it is there is refused") {
  const auto good = lists_of(schedule::one_f_one_b(2, 2));
  lists all = good;
  std::swap(all[1][0], all[1][1]);  // F0 before RA0
  CHECK(prove(all, 2).reason.kind == fault_kind::forward_before_receive);
  all = good;
  std::swap(all[0][0], all[0][1]);  // SA0 before F0
  CHECK(prove(all, 2).reason.kind == fault_kind::send_before_compute);
  all = good;
  std::swap(all[0][4], all[0][5]);  // B0 before its gradient came
  const auto result = prove(all, 2);
  CHECK(result.reason.kind == fault_kind::backward_before_receive);
  CHECK(result.matched);
  CHECK_FALSE(result.complete);
}

TEST_CASE("a malformed table is refused before anything is looked up in it") {
  CHECK(prove({{forward(7)}}, 1).reason.kind == fault_kind::micro_batch_unknown);
  CHECK(prove({{action::compute(action_kind::forward, 0, 1)}}, 1).reason.kind == fault_kind::chunk_unknown);
  CHECK(prove({{action::exchange()}}, 1).reason.kind == fault_kind::group_size);
  action too_many = action::exchange();
  too_many.transfer_count = 200;
  CHECK(prove({{too_many}}, 1).reason.kind == fault_kind::group_size);
  for (const action& wrong : {send_action(payload::activation, 0, 0), send_action(payload::activation, 0, 2),
                              send_action(payload::activation, 0, 4'000'000'000U), send_action(payload::gradient, 0, 1),
                              receive(payload::activation, 0, 1), receive(payload::gradient, 0, 0)}) {
    const auto result = prove({{forward(0), wrong, backward(0)}, {forward(0), backward(0)}}, 1);
    CHECK(result.reason.kind == fault_kind::route_unknown);
    CHECK_FALSE(result.valid());
    CHECK_FALSE(result.deadlock_free);
  }
}

TEST_CASE("no single deletion, doubling or exchange of neighbours in a proven table goes unnoticed or crashes") {
  for (const auto& good : {schedule::one_f_one_b(3, 4), schedule::gpipe(3, 4)}) {
    const lists original = lists_of(good);
    for (std::size_t stage = 0; stage < original.size(); ++stage) {
      for (std::size_t i = 0; i < original[stage].size(); ++i) {
        const auto here = static_cast<std::ptrdiff_t>(i);
        lists all = original;
        all[stage].erase(all[stage].begin() + here);
        CHECK_FALSE(prove(all, 4).valid());
        CHECK_FALSE(belay::explain(prove(all, 4).reason).empty());
        all = original;
        all[stage].insert(all[stage].begin() + here, original[stage][i]);
        CHECK_FALSE(prove(all, 4).valid());
        all = original;
        if (i + 1 < all[stage].size()) std::swap(all[stage][i], all[stage][i + 1]);
        const auto result = prove(all, 4);  // some swaps are harmless
        CHECK(result.valid() == (result.reason.kind == fault_kind::none));
      }
    }
  }
}

TEST_CASE("0SendF1, 2RecvF0 against 1SendF0, 1RecvF1 (PyTorch 172668) waits for ever in one queue, and not in two") {
  // Two ranks of two stages in a loop. Rank 0 sends what stage 0 made of micro-batch 1, and then receives for stage 2
  // what rank 1 sends of micro-batch 0, before it receives.
  const auto to = [](payload what, std::size_t batch, std::size_t peer, std::size_t chunk) {
    return action::exchange().send(what, batch, peer, chunk);
  };
  const auto from = [](payload what, std::size_t batch, std::size_t peer, std::size_t chunk) {
    return action::exchange().receive(what, batch, peer, chunk);
  };
  const auto a = payload::activation, g = payload::gradient;
  const auto f = [](std::size_t batch, std::size_t chunk) {
    return action::compute(action_kind::forward, batch, chunk);
  };
  const auto b = [](std::size_t batch, std::size_t chunk) {
    return action::compute(action_kind::backward, batch, chunk);
  };
  const lists crossing = {
      {f(0, 0), to(a, 0, 1, 0), f(1, 0), to(a, 1, 1, 0), from(a, 0, 1, 1), f(0, 1), to(a, 0, 1, 1), from(a, 1, 1, 1),
       f(1, 1), to(a, 1, 1, 1), from(g, 0, 1, 1), b(0, 1), to(g, 0, 1, 1), from(g, 1, 1, 1), b(1, 1), to(g, 1, 1, 1),
       from(g, 0, 1, 0), b(0, 0), from(g, 1, 1, 0), b(1, 0)},
      {from(a, 0, 0, 0), f(0, 0), to(a, 0, 0, 0), from(a, 1, 0, 0), f(1, 0), to(a, 1, 0, 0), from(a, 0, 0, 1), f(0, 1),
       b(0, 1), to(g, 0, 0, 1), from(a, 1, 0, 1), f(1, 1), b(1, 1), to(g, 1, 0, 1), from(g, 0, 0, 0), b(0, 0),
       to(g, 0, 0, 0), from(g, 1, 0, 0), b(1, 0), to(g, 1, 0, 0)}};
  const auto table = schedule::make_table("crossing", 2, crossing, 2, schedule::stage_in_loop);
  const auto stuck = belay::proof(table);
  CHECK(stuck.complete);
  CHECK(stuck.matched);
  CHECK(stuck.reason.kind == fault_kind::deadlock);
  CHECK(stuck.reason.stage == 0);
  CHECK(stuck.reason.micro_batch == 1);
  // Each edge has an order of its own, in which rank 0 sends as rank 1 receives: nothing is wrong with any of them.
  const std::vector<std::size_t> rising = {0, 1};
  CHECK(schedule::edges_of(table) == std::vector<schedule::message_edge>{{0, 1, a, 0, rising},
                                                                         {1, 0, a, 0, rising},
                                                                         {0, 1, a, 1, rising},
                                                                         {1, 0, g, 0, rising},
                                                                         {0, 1, g, 1, rising},
                                                                         {1, 0, g, 1, rising}});
  CHECK(belay::proof(table, {0, schedule::message_queues::one_an_edge}).valid());
  CHECK(belay::proof(table, {1, schedule::message_queues::one_a_rank}).valid());
  CHECK(schedule::find_depths(table, {std::vector<schedule::stage_costs>(4), 0}).to_run == 1);
}
