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

// A ring of two slots, as the stream uses it: a slot is filled again when its last operation has been waited for.
struct started {
  static constexpr std::uint64_t capacity = 2;
  std::uint64_t count;
  bool waits_for_last;
  belay::submission_queue<model::atomics, model::kernel> queue;
  std::array<model::plain<int>, capacity> slots{model::plain<int>{"a slot"}, model::plain<int>{"a slot"}};
  std::array<model::plain<int>, capacity> results{model::plain<int>{"a result"}, model::plain<int>{"a result"}};

  started(std::uint64_t n, bool waits) : count(n), waits_for_last(waits) {}
  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }

  void run(int me) { me == 0 ? launch_all() : serve(); }
  void launch_all() {
    for (std::uint64_t i = 1; i <= count; ++i) {
      const std::uint64_t number = queue.next();
      model::expect(number == i, "a number twice, or left out");
      if (number > capacity) queue.wait(number - capacity, {});
      slots[at(number % capacity)].write(static_cast<int>(number));
      queue.launch(number);
    }
    if (queue.completed(1) && count <= capacity)
      model::expect(results[at(1 % capacity)].read() == 10, "an early result");
    if (waits_for_last) {
      queue.wait(count, {});
      model::expect(results[at(count % capacity)].read() == static_cast<int>(10 * count), "another result");
    }
    queue.end();
  }
  void serve() {
    std::uint64_t served = 0;
    while (const std::uint64_t number = queue.await({})) {
      model::expect(number == ++served, "out of order");
      model::expect(slots[at(number % capacity)].read() == static_cast<int>(number), "another operation's slot");
      results[at(number % capacity)].write(static_cast<int>(10 * number));
      queue.complete(number);
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
  model::study study("submission_queue");
  study.holds<started>("launch, wait, end", 2, 1, {}, of<started>(1, true));
  study.holds<started>("launch, end", 2, 2, model::bound_of(4), of<started>(2, false));
  study.holds<started>("launch, wait, end", 2, 2, model::bound_of(3), of<started>(2, true));
  study.holds<started>("more than the ring holds", 2, 4, model::bound_of(2), of<started>(4, true));
  study.seed_mistakes({"submission_queue.hpp"}, {});
  study.sum_up();
}
