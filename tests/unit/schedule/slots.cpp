// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Slots of every table, counted by another way than the one that gives them: as many as micro-batches have at one time,
// and none that is taken before its last use.
#include <doctest/doctest.h>

#include <array>
#include <string>
#include <vector>

#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "unit/schedule/support/every_rule.hpp"

namespace schedule = belay::schedule;
using schedule::action;
using schedule::action_kind;
using schedule::kept_part;

namespace {

using rows = std::vector<std::vector<action>>;

constexpr std::array<kept_part, 3> parts = {kept_part::forward_to_input_gradient, kept_part::forward_to_weight_gradient,
                                            kept_part::between_gradients};

constexpr bool begins(kept_part part, action_kind kind) {
  return kind == (part == kept_part::between_gradients ? action_kind::input_gradient : action_kind::forward);
}
constexpr bool ends(kept_part part, action_kind kind) {
  if (kind == action_kind::backward) return part != kept_part::between_gradients;
  return kind ==
         (part == kept_part::forward_to_input_gradient ? action_kind::input_gradient : action_kind::weight_gradient);
}

// Walks each row: a slot that is taken is free, and the most that were taken are all that there are.
template <class Table>
constexpr bool slots_are_the_peak(const Table& table) {
  const auto slots = schedule::slots_of(table);
  const std::size_t room = table.stages() * table.micro_batches();
  for (const kept_part part : parts) {
    const schedule::scratch_array<std::uint8_t> taken(room);
    const schedule::scratch_array<std::uint32_t> live(table.stages()), peak(table.stages());
    for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
      for (const action& now : table.actions(rank)) {
        const bool begin = begins(part, now.kind), end = ends(part, now.kind);
        if (now.is_exchange() || (!begin && !end)) continue;
        const std::size_t stage = table.stage(rank, now.chunk);
        const std::size_t slot = slots.slot(stage, part, now.micro_batch);
        if (slot >= slots.count(stage, part)) return false;
        std::uint8_t& own = taken.data()[stage * table.micro_batches() + slot];
        if (own == (begin ? 1 : 0)) return false;
        own = begin ? 1 : 0;
        std::uint32_t& now_live = live.data()[stage];
        now_live = begin ? now_live + 1 : now_live - 1;
        if (now_live > peak.data()[stage]) peak.data()[stage] = now_live;
      }
    }
    for (std::size_t stage = 0; stage < table.stages(); ++stage)
      if (peak[stage] != slots.count(stage, part)) return false;
  }
  return true;
}

template <auto Rule>
constexpr bool has_as_many_as_it_needs = slots_are_the_peak(schedule::generate<Rule, 4, 16>());
static_assert(has_as_many_as_it_needs<schedule::gpipe_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::one_f_one_b_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::interleaved_rule{2}>);
static_assert(has_as_many_as_it_needs<schedule::interleaved_rule{3}>);
static_assert(has_as_many_as_it_needs<schedule::breadth_first_rule{2}>);
static_assert(has_as_many_as_it_needs<schedule::interleaved_zero_bubble_rule{2}>);
static_assert(has_as_many_as_it_needs<schedule::zb_h1_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::zb_h2_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::zb_v_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::dualpipe_v_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::v_half_rule{}>);
static_assert(has_as_many_as_it_needs<schedule::v_min_rule{}>);

// A user's table, within default limits.
constexpr auto zb_v = schedule::generate<schedule::zb_v_rule{}, 8, 32>();
constexpr auto zb_v_slots = schedule::slots_of(zb_v);
static_assert(zb_v_slots.count(0, kept_part::forward_to_weight_gradient) == 16);  // rank 0, chunk 0
static_assert(zb_v_slots.count(0, kept_part::between_gradients) == 1);

}  // namespace

TEST_CASE("every table of every size has as many slots as it needs at one time, and takes none before its last use") {
  test::for_each_rule([](const auto& rule, const std::string& name) {
    for (std::size_t p = 1; p <= 5; ++p) {
      for (std::size_t m = schedule::least_micro_batches(rule, p); m <= 13; ++m) {
        CAPTURE(name);
        CAPTURE(p);
        CAPTURE(m);
        REQUIRE(slots_are_the_peak(schedule::generate(rule, p, m)));
      }
    }
  });
}

TEST_CASE("slots of a whole backward: those of the forward, and none for what an input gradient leaves") {
  const auto slots = schedule::slots_of(schedule::one_f_one_b(2, 3));
  CHECK(slots.count(0, kept_part::forward_to_input_gradient) == 2);
  CHECK(slots.count(1, kept_part::forward_to_weight_gradient) == 1);
  CHECK(slots.count(0, kept_part::between_gradients) == 0);
  CHECK(slots.slot(0, kept_part::forward_to_input_gradient, 0) == 0);
  CHECK(slots.slot(0, kept_part::forward_to_input_gradient, 1) == 1);
  CHECK(slots.slot(0, kept_part::forward_to_input_gradient, 2) == 0);
  CHECK(slots.slot(0, kept_part::between_gradients, 1) == schedule::nowhere);
}

TEST_CASE("a table whose rows make no sense has no slots") {
  const auto refused = [](const std::vector<action>& row) {
    CHECK_THROWS_WITH_AS(static_cast<void>(schedule::slots_of(schedule::make_table("wrong", 2, rows{row}))),
                         doctest::Contains("that is not proven has no slots"), belay::usage_error);
  };
  const auto f = action_kind::forward, b = action_kind::backward, w = action_kind::weight_gradient;
  refused({action::compute(f, 0), action::compute(f, 0)});
  refused({action::compute(b, 0)});
  refused({action::compute(f, 0), action::compute(w, 0)});
  refused({action::compute(f, 0), action::compute(b, 0), action::compute(b, 0)});
  refused({action::compute(f, 2)});
  refused({action::compute(f, 0, 1)});
}

namespace {

constexpr std::array<schedule::stage_bytes, 4> kept = {{{100, 20, 3}, {100, 20, 3}, {100, 20, 3}, {400, 40, 5}}};
constexpr auto h1 = schedule::generate<schedule::zb_h1_rule{}, 4, 8>();
constexpr std::array<std::uint64_t, 4> enough = {1000, 1000, 1000, 2000};
constexpr std::array<std::uint64_t, 4> too_little = {1000, 1000, 100, 2000};
static_assert(belay::proof(h1, {}, {kept, enough}).valid());
static_assert(!belay::proof(h1, {}, {kept, too_little}).valid());
static_assert(belay::proof(h1, {}, {kept, too_little}).reason.rank == 2);

}  // namespace

TEST_CASE("a table that keeps more bytes than a rank has is refused with rank, bytes and budget") {
  // 1F1B, two ranks: rank 0 keeps two micro-batches, each of 103 bytes until its backward.
  const auto table = schedule::one_f_one_b(2, 4);
  const std::vector<schedule::stage_bytes> each(2, {100, 20, 3});
  const std::vector<std::uint64_t> exact = {206, 103}, short_of_one = {206, 102};
  const auto fits = belay::proof(table, {}, {each, exact});
  CHECK(fits.valid());
  CHECK(fits.peak_bytes == std::vector<std::size_t>{206, 103});
  CHECK(schedule::peak_bytes(table, each) == std::vector<std::uint64_t>{206, 103});
  const auto refused = belay::proof(table, {}, {each, short_of_one});
  CHECK_FALSE(refused.fits);
  CHECK_FALSE(refused.valid());
  CHECK(refused.deadlock_free);
  CHECK(refused.reason.kind == schedule::fault_kind::memory_exceeded);
  CHECK(belay::explain(refused.reason) == "it keeps 103 bytes on rank 1, which has 102");
  // In halves: while micro-batch 0 waits for its weight gradient, 23 of its bytes stay.
  const auto f = action_kind::forward, i = action_kind::input_gradient, w = action_kind::weight_gradient;
  const auto halves = schedule::make_table("halves", 2,
                                           rows{{action::compute(f, 0), action::compute(i, 0), action::compute(f, 1),
                                                 action::compute(i, 1), action::compute(w, 0), action::compute(w, 1)}});
  const std::vector<schedule::stage_bytes> one(1, {100, 20, 3});
  CHECK(schedule::peak_bytes(halves, one) == std::vector<std::uint64_t>{23 + 100 + 3 + 20});
  CHECK_THROWS_WITH_AS(static_cast<void>(belay::proof(table, {}, {one, exact})),
                       doctest::Contains("what each stage keeps, and what each rank has"), belay::usage_error);
}

TEST_CASE("bytes at the peak do not grow with the number of micro-batches where backwards are split") {
  for (const char* name : {"zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "interleaved-zb:2", "dualpipe-v"}) {
    CAPTURE(name);
    const auto few = schedule::named_table(name, 4, 16), many = schedule::named_table(name, 4, 64);
    const std::vector<schedule::stage_bytes> each(few.stages(), {100, 20, 3});
    CHECK(schedule::peak_bytes(few, each) == schedule::peak_bytes(many, each));
  }
}
