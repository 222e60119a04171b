// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Gradients of two ranks, and a thread that reduces what both have started: backwards add while other buckets are
// reduced, an optimizer takes what is reduced, and the next step adds to the memory again.
#include "belay/parallel/bucket/gradient_states.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "belay/comm/submission_queue.hpp"
#include "model/explorer/study.hpp"

namespace {

constexpr std::size_t buckets = 2, contributions = 2;
using contribution_order = std::array<std::size_t, buckets * contributions>;  // a bucket each

// Threads 0 and 1 compute, and 2 reduces for them.
template <class States = belay::gradient_states>
struct two_ranks {
  struct bucket {
    model::plain<int> computed{"a gradient"};
    model::plain<int> sum{"a reduced gradient"};
  };
  struct rank {
    std::array<bucket, buckets> all;
    belay::submission_queue<model::atomics, model::kernel> started;
    std::array<model::plain<std::size_t>, buckets> commands;  // by number of the operation
  };
  std::array<contribution_order, 2> order;
  int steps;
  std::array<rank, 2> ranks{};

  two_ranks(const contribution_order& first, const contribution_order& second, int s)
      : order{first, second}, steps(s) {}
  [[nodiscard]] model::cast_list cast() const { return {3, 0, 0}; }
  void run(int me) { me < 2 ? compute(static_cast<std::size_t>(me)) : reduce(); }

  void compute(std::size_t number) {
    rank& self = ranks[number];
    States states(buckets);
    int value = 0;
    for (int step = 1; step <= steps; ++step) {
      model::expect(states.begin([](std::size_t) { return contributions; }), "a step that does not begin");
      std::array<int, buckets> added{};
      std::uint64_t last = 0;
      for (const std::size_t b : order[number]) {
        self.all[b].computed.write(++added[b]);
        model::expect(states.contribute(b), "a contribution that is refused");
        for (; states.can_start(); states.note_started()) {
          last = self.started.next();
          self.commands[static_cast<std::size_t>(last) % buckets].write(states.next());
          self.started.launch(last);
        }
      }
      model::expect(states.started() == buckets, "a reduction that was not started");
      states.wait(self.started, last);
      const std::uint64_t reduction = states.note_over();
      for (int optimizer = 0; optimizer < 2; ++optimizer)
        if (states.apply(reduction))
          for (bucket& each : self.all) value += each.sum.read();
      model::expect(value == step * static_cast<int>(2 * buckets * contributions), "other gradients, or applied twice");
    }
    self.started.end();
  }
  void reduce() {
    while (const std::uint64_t number = ranks[0].started.await({})) {
      model::expect(ranks[1].started.await({}) == number, "a reduction that a peer has not started");
      const auto slot = static_cast<std::size_t>(number) % buckets;
      const std::size_t b = ranks[0].commands[slot].read();
      model::expect(ranks[1].commands[slot].read() == b, "the peer reduces another bucket");
      const int sum = ranks[0].all[b].computed.read() + ranks[1].all[b].computed.read();
      for (rank& each : ranks) {
        each.all[b].sum.write(sum);
        each.started.complete(number);
      }
    }
    model::expect(ranks[1].started.await({}) == 0, "a reduction that a peer has not started");
  }
  void check() const {}
};

// As the buckets use it.
struct as_it_is : belay::gradient_states {
  using gradient_states::gradient_states;
  [[nodiscard]] std::size_t next() const { return started(); }
  static void wait(auto& queue, std::uint64_t last) { queue.wait(last, {}); }
};
// A reduction begins before the last contribution.
struct starts_early : as_it_is {
  using as_it_is::as_it_is;
  [[nodiscard]] bool can_start() const { return started() < buckets && of(started()) != belay::gradient_phase::open; }
};
// Reductions begin as their buckets are complete, in another order on each rank.
struct starts_in_any_order : as_it_is {
  using as_it_is::as_it_is;
  std::array<bool, buckets> gone{};
  template <class Contributions>
  bool begin(const Contributions& each) {
    gone = {};
    return as_it_is::begin(each);
  }
  [[nodiscard]] std::size_t next() {
    for (std::size_t b = 0; b < buckets; ++b)
      if (!gone[b] && of(b) == belay::gradient_phase::reducing) return gone[b] = true, b;
    return buckets;
  }
  [[nodiscard]] bool can_start() const {
    for (std::size_t b = 0; b < buckets; ++b)
      if (!gone[b] && of(b) == belay::gradient_phase::reducing) return true;
    return false;
  }
};
// Gradients are consumed twice.
struct takes_twice : as_it_is {
  using as_it_is::as_it_is;
  bool apply(std::uint64_t reduction) noexcept { return as_it_is::apply(reduction) || true; }
};
// They are consumed before the reduction is over.
struct takes_early : as_it_is {
  using as_it_is::as_it_is;
  static void wait(auto& queue, std::uint64_t last) { queue.wait(last - 1, {}); }
};
// A bucket has one contribution more than it awaits.
struct misses_one : as_it_is {
  using as_it_is::as_it_is;
  template <class Contributions>
  bool begin(const Contributions& each) {
    return as_it_is::begin([&](std::size_t b) { return each(b) - 1; });
  }
};

template <class States>
auto of(const contribution_order& first, const contribution_order& second, int steps) {
  return [=](std::optional<two_ranks<States>>& it) { it.emplace(first, second, steps); };
}

}  // namespace

TEST_CASE("gradients are added to, reduced and taken once each, in this order") {
  model::study study("gradient_states");
  const contribution_order forward{0, 0, 1, 1}, backward{1, 1, 0, 0}, mixed{1, 0, 1, 0};
  study.holds<two_ranks<as_it_is>>("in one order", 2, 1, model::bound_of(2), of<as_it_is>(forward, forward, 1));
  study.holds<two_ranks<as_it_is>>("in two orders", 2, 1, model::bound_of(2), of<as_it_is>(forward, backward, 1));
  study.holds<two_ranks<as_it_is>>("in turns", 2, 1, model::bound_of(2), of<as_it_is>(backward, mixed, 1));
  study.holds<two_ranks<as_it_is>>("two steps", 2, 2, model::bound_of(1), of<as_it_is>(forward, mixed, 2));
  const model::bounds some = model::bound_of(1);
  study.is_caught<two_ranks<starts_early>>("a reduction before the last contribution", some,
                                           of<starts_early>(forward, forward, 1));
  study.is_caught<two_ranks<starts_in_any_order>>("reductions in another order on each rank", some,
                                                  of<starts_in_any_order>(forward, backward, 1));
  study.is_caught<two_ranks<takes_twice>>("gradients that are consumed twice", some,
                                          of<takes_twice>(forward, forward, 1));
  study.is_caught<two_ranks<takes_early>>("gradients that are consumed during their reduction", some,
                                          of<takes_early>(forward, forward, 1));
  study.is_caught<two_ranks<misses_one>>("a contribution that is not awaited", some,
                                         of<misses_one>(forward, forward, 1));
  study.sum_up();
}
