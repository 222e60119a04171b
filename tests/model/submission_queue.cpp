// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Started operations: one thread queues them in a ring, another runs them in order and ends when it is told to.
#include "belay/comm/submission_queue.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>

#include "model/explorer/study.hpp"

namespace {

constexpr std::size_t at(std::uint64_t i) { return static_cast<std::size_t>(i); }

// A ring of two slots, as the stream uses it: a slot is filled again when its last ticket has been settled.
struct started {
  static constexpr std::uint64_t capacity = 2;
  std::uint64_t count;
  bool settles_last;
  belay::submission_queue<model::atomics, model::kernel> line;
  std::array<model::plain<int>, capacity> slots{model::plain<int>{"a slot"}, model::plain<int>{"a slot"}};
  std::array<model::plain<int>, capacity> results{model::plain<int>{"a result"}, model::plain<int>{"a result"}};

  started(std::uint64_t n, bool settles) : count(n), settles_last(settles) {}
  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }

  void run(int me) { me == 0 ? queue() : serve(); }
  void queue() {
    for (std::uint64_t i = 1; i <= count; ++i) {
      const std::uint64_t ticket = line.next();
      model::expect(ticket == i, "a ticket twice, or left out");
      if (ticket > capacity) line.settle(ticket - capacity, {});
      slots[at(ticket % capacity)].write(static_cast<int>(ticket));
      line.launch(ticket);
    }
    if (line.completed(1) && count <= capacity)
      model::expect(results[at(1 % capacity)].read() == 10, "an early result");
    if (settles_last) {
      line.settle(count, {});
      model::expect(results[at(count % capacity)].read() == static_cast<int>(10 * count), "another result");
    }
    line.end();
  }
  void serve() {
    std::uint64_t served = 0;
    while (const std::uint64_t ticket = line.await({})) {
      model::expect(ticket == ++served, "out of order");
      model::expect(slots[at(ticket % capacity)].read() == static_cast<int>(ticket), "another ticket's slot");
      results[at(ticket % capacity)].write(static_cast<int>(10 * ticket));
      line.complete(ticket);
    }
    model::expect(served == count, "ended too early");
  }
  void check() const {}
};

template <class Scenario, class... Numbers>
auto of(Numbers... numbers) {
  return [=](std::optional<Scenario>& it) { it.emplace(numbers...); };
}

}  // namespace

TEST_CASE("started operations run once, in order, and are seen to be over") {
  model::study study("tickets");
  study.holds<started>("launch, settle, end", 2, 1, {}, of<started>(1, true));
  study.holds<started>("launch, end", 2, 2, model::bound_of(4), of<started>(2, false));
  study.holds<started>("launch, settle, end", 2, 2, model::bound_of(3), of<started>(2, true));
  study.holds<started>("more than the ring holds", 2, 4, model::bound_of(2), of<started>(4, true));
  study.seed_mistakes({"tickets.hpp"}, {});
  study.sum_up();
}
