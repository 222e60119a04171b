// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks go through operations together: flag lines and their two slots, rounds through the two halves of bounce
// buffers, the access to each other's buffers, and what happens to all of that when the world is aborted in between.
#include "belay/backend/host/rendezvous/rendezvous.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>

#include "belay/backend/host/failure/abort_flag.hpp"
#include "belay/backend/host/rendezvous/peer_flags.hpp"
#include "belay/comm/event_count.hpp"
#include "model/explorer/study.hpp"

namespace {

using belay::host::address_space;
using doorbell = belay::event_count<belay::sharing::several_processes, model::atomics, model::kernel>;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

// Flags with one line instead of two.
struct one_line_flags : belay::host::peer_flags<model::atomics> {
  [[nodiscard]] line& flag_line_of(std::uint32_t) noexcept { return lines[0]; }
  [[nodiscard]] const line& flag_line_of(std::uint32_t) const noexcept { return lines[0]; }
  void publish(belay::host::flag_word word) noexcept { lines[0].word.store(word.bits(), std::memory_order_seq_cst); }
  [[nodiscard]] bool arrived(std::uint32_t operation_number,
                             std::memory_order order = std::memory_order_acquire) const noexcept {
    return static_cast<std::int32_t>(belay::host::flag_word::of(lines[0].word.load(order)).operation_number -
                                     operation_number) >= 0;
  }
  [[nodiscard]] bool calls(belay::host::flag_word word) const noexcept {
    return lines[0].word.load(std::memory_order_acquire) == word.bits();
  }
  [[nodiscard]] std::uint32_t fingerprint_of(std::uint32_t) const noexcept {
    return belay::host::flag_word::of(lines[0].word.load(std::memory_order_relaxed)).print;
  }
};

// What a group shares in one lane.
template <class Flags>
struct shared_lane {
  int ranks;
  address_space space;
  std::array<Flags, 3> all_flags{};
  std::array<doorbell, 4> doorbells{};
  belay::host::abort_flag<model::atomics> flag{};

  void abort() {
    flag.abort(
        1, [] {},
        [&] {
          for (int q = 0; q < ranks; ++q) doorbells[at(q)].notify_all();
        });
  }
};

template <class Flags>
struct checked_lane_view {
  shared_lane<Flags>* shared;
  int number;

  [[nodiscard]] int me() const { return number; }
  [[nodiscard]] int size() const { return shared->ranks; }
  [[nodiscard]] Flags& flags_of(int who) const { return shared->all_flags[at(who)]; }
  [[nodiscard]] doorbell& doorbell_of(int who) const { return shared->doorbells[at(who)]; }
  [[nodiscard]] bool aborted(std::memory_order order) const { return shared->flag.aborted(order); }
  [[nodiscard]] address_space space() const { return shared->space; }
  static void yield() { model::atomics::yield(); }

  [[nodiscard]] auto wait() const {
    return [self = *this](int who, auto done) {
      return belay::wait_until(self.doorbell_of(who), {}, done,
                               [&] { return self.aborted(std::memory_order_acquire); });
    };
  }
};

// Eager rounds: the data is in the lines. Every second one is published as a full line.
template <class Flags = belay::host::peer_flags<model::atomics>>
struct eager_rounds {
  int operations;
  shared_lane<Flags> shared;
  std::array<std::array<model::plain<int>, 2>, 3> payload{};

  eager_rounds(int ranks, int n) : operations(n), shared{ranks, address_space::one} {}
  [[nodiscard]] model::cast_list cast() const { return {shared.ranks, 0, 0}; }
  [[nodiscard]] model::plain<int>& line(int who, const belay::host::rendezvous<checked_lane_view<Flags>>& steps) {
    return payload[at(who)][&steps.flag_line_of(who) == &shared.all_flags[at(who)].lines[0] ? 0 : 1];
  }
  void run(int me) {
    const checked_lane_view<Flags> lane_view{&shared, me};
    belay::host::rendezvous steps(lane_view);
    for (int operation_number = 1; operation_number <= operations; ++operation_number) {
      steps.next_operation();
      line(me, steps).write(10 * me + operation_number);
      if (operation_number % 2 == 1)
        steps.publish(static_cast<std::uint32_t>(70 + operation_number));
      else
        steps.publish_full(static_cast<std::uint32_t>(70 + operation_number));
      const auto there = steps.await_flag_lines(static_cast<std::uint32_t>(70 + operation_number), lane_view.wait());
      model::expect(there == belay::host::flag_lines::alike,
                    "aborted without a reason, or a line of another operation");
      for (int q = 0; q < shared.ranks; ++q) {
        model::expect(steps.fingerprint_of(q) == static_cast<std::uint32_t>(70 + operation_number),
                      "a line of another operation");
        model::expect(line(q, steps).read() == 10 * q + operation_number, "another operation's data");
      }
    }
  }
  void check() const {}
};

// Larger operations: each uses the other's buffers, through two halves of bounce buffers in rounds, and directly with
// stores that go around the caches.
struct accesses {
  using peer_flags = belay::host::peer_flags<model::atomics>;
  int operations;
  int rounds;
  int halves;
  shared_lane<peer_flags> shared;
  std::array<model::plain<int>, 3> in{model::plain<int>{"an input"}, model::plain<int>{"an input"},
                                      model::plain<int>{"an input"}};
  std::array<std::array<model::plain<int>, 3>, 3> out{};
  std::array<std::array<model::plain<int>, 2>, 3> half{};

  accesses(int ranks, int n, int r, int h = 2)
      : operations(n), rounds(r), halves(h), shared{ranks, address_space::one} {}
  [[nodiscard]] model::cast_list cast() const { return {shared.ranks, 0, 0}; }
  void run(int me) {
    const checked_lane_view<peer_flags> lane_view{&shared, me};
    belay::host::rendezvous steps(lane_view);
    for (int operation_number = 1; operation_number <= operations; ++operation_number) {
      steps.next_operation();
      in[at(me)].write(10 * me + operation_number);
      steps.publish_full(7);
      model::expect(
          steps.await_flag_lines(7, lane_view.wait()) == belay::host::flag_lines::alike && steps.begin_access(),
          "aborted without a reason");
      for (int round = 0; round < rounds; ++round) {
        half[at(me)][at(round % halves)].write(100 * operation_number + 10 * me + round);
        model::expect(steps.pass_round(lane_view.wait()), "aborted without a reason");
        for (int q = 0; q < shared.ranks; ++q) {
          model::expect(half[at(q)][at(round % halves)].read() == 100 * operation_number + 10 * q + round,
                        "another round's data");
        }
      }
      for (int q = 0; q < shared.ranks; ++q) out[at(q)][at(me)].stream(in[at(q)].read());
      model::order_streaming_stores();
      model::expect(steps.exit(lane_view.wait()), "aborted without a reason");
      for (int q = 0; q < shared.ranks; ++q)
        model::expect(out[at(me)][at(q)].read() == 10 * me + operation_number, "a part of the output");
    }
  }
  void check() const {}
};

// The world is aborted while the ranks use each other's inputs. A rank that gets an error changes its input at once.
// Among threads no peer may read it then; between processes no peer may return success with what it read.
template <address_space Space>
struct aborted_while_used {
  using peer_flags = belay::host::peer_flags<model::atomics>;
  int operations;
  shared_lane<peer_flags> shared;
  std::array<model::plain<int>, 3> mapped_input{model::plain<int>{"an input"}, model::plain<int>{"an input"},
                                                model::plain<int>{"an input"}};
  std::array<model::atomic<int>, 3> bytes{};

  aborted_while_used(int ranks, int n) : operations(n), shared{ranks, Space} {}
  // The last thread is no rank of the group.
  [[nodiscard]] model::cast_list cast() const { return {shared.ranks + 1, 0, 0}; }

  void write(int who, int value) {
    if constexpr (Space == address_space::one)
      mapped_input[at(who)].write(value);
    else
      bytes[at(who)].store(value, std::memory_order_relaxed);
  }
  [[nodiscard]] int read(int who) {
    if constexpr (Space == address_space::one)
      return mapped_input[at(who)].read();
    else
      return bytes[at(who)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool run_operation(belay::host::rendezvous<checked_lane_view<peer_flags>>& steps,
                                   const checked_lane_view<peer_flags>& lane_view, int operation_number) {
    steps.next_operation();
    write(lane_view.me(), 10 * lane_view.me() + operation_number);
    steps.publish_full(7);
    if (steps.await_flag_lines(7, lane_view.wait()) != belay::host::flag_lines::alike || !steps.begin_access())
      return false;
    std::array<int, 3> got{};
    for (int q = 0; q < shared.ranks; ++q) got[at(q)] = q == lane_view.me() ? 10 * q + operation_number : read(q);
    if (!steps.exit(lane_view.wait())) return false;
    for (int q = 0; q < shared.ranks; ++q)
      model::expect(got[at(q)] == 10 * q + operation_number, "success with other bytes");
    return true;
  }
  void run(int me) {
    if (me == shared.ranks) return shared.abort();
    const checked_lane_view<peer_flags> lane_view{&shared, me};
    belay::host::rendezvous steps(lane_view);
    for (int operation_number = 1; operation_number <= operations; ++operation_number) {
      if (lane_view.aborted(std::memory_order_acquire)) return;
      if (run_operation(steps, lane_view, operation_number)) continue;
      steps.drain_access();
      write(me, 99);
      return;
    }
  }
  void check() const {}
};

template <class Scenario, class... Numbers>
auto of(Numbers... numbers) {
  return [=](std::optional<Scenario>& it) { it.emplace(numbers...); };
}

}  // namespace

TEST_CASE("ranks enter, use each other's buffers and exit; an abort in between leaves no buffer in use") {
  model::study rendezvous("rendezvous");
  const model::bounds two = model::bound_of(2);
  using in_threads = aborted_while_used<address_space::one>;
  using in_processes = aborted_while_used<address_space::several>;
  rendezvous.holds<eager_rounds<>>("eager rounds", 2, 3, two, of<eager_rounds<>>(2, 3));
  rendezvous.holds<eager_rounds<>>("eager rounds", 3, 2, model::bound_of(1), of<eager_rounds<>>(3, 2));
  rendezvous.holds<accesses>("access buffers", 2, 2, two, of<accesses>(2, 2, 0));
  rendezvous.holds<accesses>("access buffers, bounce", 2, 1, two, of<accesses>(2, 1, 3));
  rendezvous.holds<accesses>("access buffers, bounce", 3, 1, model::bound_of(1), of<accesses>(3, 1, 1));
  rendezvous.holds<accesses>("access buffers, bounce", 3, 2, model::bound_of(0), of<accesses>(3, 2, 1));
  rendezvous.holds<in_threads>("aborted, threads", 2, 1, two, of<in_threads>(2, 1));
  rendezvous.holds<in_processes>("aborted, processes", 2, 1, two, of<in_processes>(2, 1));
  rendezvous.holds<in_threads>("aborted, threads", 2, 2, two, of<in_threads>(2, 2));
  rendezvous.holds<in_threads>("aborted, threads", 3, 1, model::bound_of(1), of<in_threads>(3, 1));
  rendezvous.holds<in_threads>("aborted, threads", 3, 2, model::bound_of(0), of<in_threads>(3, 2));
  rendezvous.holds<in_processes>("aborted, processes", 2, 2, two, of<in_processes>(2, 2));
  rendezvous.holds<in_processes>("aborted, processes", 3, 2, model::bound_of(0), of<in_processes>(3, 2));
  rendezvous.seed_mistakes(
      {"rendezvous.hpp", "peer_flags.hpp", "rendezvous.cpp#order_streaming_stores", "abort_flag.hpp#aborted_.store"},
      {{"aborted_.store(1", "left out", "The world is not aborted then: see abort_flag, where it is caught."},
       {"round.load(order)", " -> ",
        "A waiting rank that announces itself before the writer looks for sleepers is woken; one that does later sees "
        "the store by that alone."},
       {"access_ended.load(order)", " -> ", "The same."}});
  using one_line = eager_rounds<one_line_flags>;
  rendezvous.is_caught<one_line>("one line instead of two", two, of<one_line>(2, 3));
  rendezvous.is_caught<accesses>("one half of a bounce buffer instead of two", two, of<accesses>(2, 1, 2, 1));
  rendezvous.sum_up();
}
