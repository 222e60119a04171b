// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Observers of updates are called in their turns, and end with what owns them.
#include "belay/parallel/bucket/update_observer.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "belay/core/error.hpp"

namespace {

struct named final : belay::update_observer {
  std::string name;
  std::string* told;
  int holds = 0;

  named(std::string called, std::string& where_to) : name(std::move(called)), told(&where_to) {}
  void before_update(belay::where) override { *told += name; }
  void begin_hold(belay::where) override { ++holds; }
  void end_hold(belay::where) override { --holds; }
};

using belay::observer_turn;

}  // namespace

TEST_CASE("state is brought back before work is queued and what reads is told, in whatever order they were added") {
  std::string told;
  named reader("r", told), second("s", told), graphs("g", told), mover("m", told);
  belay::update_observers all;
  const auto reads = all.add(reader, observer_turn::reads_state);
  auto reads_too = all.add(second, observer_turn::reads_state);
  const auto queues = all.add(graphs, observer_turn::queues_work);
  std::optional<belay::update_observation> moves = all.add(mover, observer_turn::moves_state);
  all.before_update(belay::where::current());
  CHECK(told == "mgrs");
  CHECK(all.last(observer_turn::reads_state) == &second);
  CHECK(all.last(observer_turn::moves_state) == &mover);
  CHECK(moves->all() == &all);

  belay::update_observation other = std::move(reads_too);
  CHECK(reads_too.all() == nullptr);
  moves.reset();
  other = {};
  told.clear();
  all.before_update(belay::where::current());
  CHECK(told == "gr");
  CHECK(all.last(observer_turn::moves_state) == nullptr);
  CHECK_FALSE(all.has(second));
}

TEST_CASE("one observer moves state, and another is refused") {
  std::string told;
  named mover("m", told), other("o", told);
  belay::update_observers all;
  const auto moves = all.add(mover, observer_turn::moves_state);
  CHECK_THROWS_WITH_AS(static_cast<void>(all.add(other, observer_turn::moves_state)),
                       doctest::Contains("are moved by a phase_residency already"), belay::usage_error);
}

TEST_CASE("a hold is of the mover that began it, while that is there") {
  std::string told;
  named mover("m", told), next("n", told);
  belay::update_observers all;
  belay::residency_hold of_none(all, belay::where::current());
  std::optional<belay::update_observation> moves = all.add(mover, observer_turn::moves_state);
  of_none.end();
  CHECK(mover.holds == 0);
  {
    const belay::residency_hold here(all, belay::where::current());
    belay::residency_hold again(all, belay::where::current());
    CHECK(mover.holds == 2);
    again.end();
    CHECK(mover.holds == 1);
  }
  CHECK(mover.holds == 0);
  belay::residency_hold late(all, belay::where::current());
  moves.reset();
  const auto others = all.add(next, observer_turn::moves_state);
  late.end();
  CHECK(mover.holds == 1);
  CHECK(next.holds == 0);
}

TEST_CASE("what an observer leaves as it is") {
  belay::update_observer* none = nullptr;
  struct nothing final : belay::update_observer {
  } plain;
  none = &plain;
  none->before_update(belay::where::current());
  CHECK_FALSE(none->away());
  CHECK(none->squares(belay::where::current()).empty());
  bool queued = false;
  none->queue_update(nullptr, [&] { queued = true; }, belay::where::current());
  CHECK(queued);
}
