// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How ranks go through operations together: the lines and their two slots, the rounds of staging and its two halves,
// the use of each other's buffers, and what happens to all of that when the world stops in between.
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

// Where a place has one line instead of two.
struct narrow_place : belay::host::peer_flags<model::atomics> {
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

// What a group shares.
template <class Place>
struct shared_floor {
  int ranks;
  address_space space;
  std::array<Place, 3> all_flags{};
  std::array<doorbell, 4> doorbells{};
  belay::host::abort_flag<model::atomics> word{};

  void stop() {
    word.abort([] {},
               [&] {
                 for (int q = 0; q < ranks; ++q) doorbells[at(q)].notify_all();
               });
  }
};

template <class Place>
struct floor_hall {
  shared_floor<Place>* shared;
  int number;

  [[nodiscard]] int me() const { return number; }
  [[nodiscard]] int size() const { return shared->ranks; }
  [[nodiscard]] Place& flags_of(int who) const { return shared->all_flags[at(who)]; }
  [[nodiscard]] doorbell& doorbell_of(int who) const { return shared->doorbells[at(who)]; }
  [[nodiscard]] bool aborted(std::memory_order order) const { return shared->word.aborted(order); }
  [[nodiscard]] address_space space() const { return shared->space; }
  static void yield() { model::atomics::yield(); }

  [[nodiscard]] auto wait() const {
    return [self = *this](int who, auto done) {
      return belay::wait_until(self.doorbell_of(who), {}, done,
                               [&] { return self.aborted(std::memory_order_acquire); });
    };
  }
};

// Small operations: the data is in the lines. Every second one fills its line.
template <class Place = belay::host::peer_flags<model::atomics>>
struct swaps {
  int turns;
  shared_floor<Place> shared;
  std::array<std::array<model::plain<int>, 2>, 3> payload{};

  swaps(int ranks, int n) : turns(n), shared{ranks, address_space::one} {}
  [[nodiscard]] model::cast_list cast() const { return {shared.ranks, 0, 0}; }
  [[nodiscard]] model::plain<int>& line(int who, const belay::host::rendezvous<floor_hall<Place>>& way) {
    return payload[at(who)][&way.flag_line_of(who) == &shared.all_flags[at(who)].lines[0] ? 0 : 1];
  }
  void run(int me) {
    const floor_hall<Place> lane_view{&shared, me};
    belay::host::rendezvous way(lane_view);
    for (int operation_number = 1; operation_number <= turns; ++operation_number) {
      way.next_operation();
      line(me, way).write(10 * me + operation_number);
      if (operation_number % 2 == 1)
        way.publish(static_cast<std::uint32_t>(70 + operation_number));
      else
        way.publish_full(static_cast<std::uint32_t>(70 + operation_number));
      const auto there = way.await_flag_lines(static_cast<std::uint32_t>(70 + operation_number), lane_view.wait());
      model::expect(there == belay::host::flag_lines::alike,
                    "stopped without a reason, or a line of another operation");
      for (int q = 0; q < shared.ranks; ++q) {
        model::expect(way.fingerprint_of(q) == static_cast<std::uint32_t>(70 + operation_number),
                      "a line of another operation");
        model::expect(line(q, way).read() == 10 * q + operation_number, "another operation's data");
      }
    }
  }
  void check() const {}
};

// Larger ones: each uses the other's buffers, through two halves of staging in rounds, and directly with stores that
// go around the caches.
struct uses {
  using peer_flags = belay::host::peer_flags<model::atomics>;
  int turns;
  int rounds;
  int halves;
  shared_floor<peer_flags> shared;
  std::array<model::plain<int>, 3> in{model::plain<int>{"an input"}, model::plain<int>{"an input"},
                                      model::plain<int>{"an input"}};
  std::array<std::array<model::plain<int>, 3>, 3> out{};
  std::array<std::array<model::plain<int>, 2>, 3> half{};

  uses(int ranks, int n, int r, int h = 2) : turns(n), rounds(r), halves(h), shared{ranks, address_space::one} {}
  [[nodiscard]] model::cast_list cast() const { return {shared.ranks, 0, 0}; }
  void run(int me) {
    const floor_hall<peer_flags> lane_view{&shared, me};
    belay::host::rendezvous way(lane_view);
    for (int operation_number = 1; operation_number <= turns; ++operation_number) {
      way.next_operation();
      in[at(me)].write(10 * me + operation_number);
      way.publish_full(7);
      model::expect(way.await_flag_lines(7, lane_view.wait()) == belay::host::flag_lines::alike && way.begin_access(),
                    "stopped without a reason");
      for (int round = 0; round < rounds; ++round) {
        half[at(me)][at(round % halves)].write(100 * operation_number + 10 * me + round);
        model::expect(way.meet(lane_view.wait()), "stopped without a reason");
        for (int q = 0; q < shared.ranks; ++q) {
          model::expect(half[at(q)][at(round % halves)].read() == 100 * operation_number + 10 * q + round,
                        "another round's data");
        }
      }
      for (int q = 0; q < shared.ranks; ++q) out[at(q)][at(me)].stream(in[at(q)].read());
      model::order_streaming_stores();
      model::expect(way.exit(lane_view.wait()), "stopped without a reason");
      for (int q = 0; q < shared.ranks; ++q)
        model::expect(out[at(me)][at(q)].read() == 10 * me + operation_number, "a part of the output");
    }
  }
  void check() const {}
};

// Somebody stops the world while the ranks use each other's inputs. Who gets an error changes its input at once. Among
// threads nobody may read it then; between processes nobody may believe what it read.
template <address_space Space>
struct stopped_while_used {
  using peer_flags = belay::host::peer_flags<model::atomics>;
  int turns;
  shared_floor<peer_flags> shared;
  std::array<model::plain<int>, 3> seen_input{model::plain<int>{"an input"}, model::plain<int>{"an input"},
                                              model::plain<int>{"an input"}};
  std::array<model::atomic<int>, 3> bytes{};

  stopped_while_used(int ranks, int n) : turns(n), shared{ranks, Space} {}
  // The last thread is no rank of the group.
  [[nodiscard]] model::cast_list cast() const { return {shared.ranks + 1, 0, 0}; }

  void write(int who, int value) {
    if constexpr (Space == address_space::one)
      seen_input[at(who)].write(value);
    else
      bytes[at(who)].store(value, std::memory_order_relaxed);
  }
  [[nodiscard]] int read(int who) {
    if constexpr (Space == address_space::one)
      return seen_input[at(who)].read();
    else
      return bytes[at(who)].load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool cross(belay::host::rendezvous<floor_hall<peer_flags>>& way,
                           const floor_hall<peer_flags>& lane_view, int operation_number) {
    way.next_operation();
    write(lane_view.me(), 10 * lane_view.me() + operation_number);
    way.publish_full(7);
    if (way.await_flag_lines(7, lane_view.wait()) != belay::host::flag_lines::alike || !way.begin_access())
      return false;
    std::array<int, 3> got{};
    for (int q = 0; q < shared.ranks; ++q) got[at(q)] = q == lane_view.me() ? 10 * q + operation_number : read(q);
    if (!way.exit(lane_view.wait())) return false;
    for (int q = 0; q < shared.ranks; ++q)
      model::expect(got[at(q)] == 10 * q + operation_number, "success with other bytes");
    return true;
  }
  void run(int me) {
    if (me == shared.ranks) return shared.stop();
    const floor_hall<peer_flags> lane_view{&shared, me};
    belay::host::rendezvous way(lane_view);
    for (int operation_number = 1; operation_number <= turns; ++operation_number) {
      if (lane_view.aborted(std::memory_order_acquire)) return;
      if (cross(way, lane_view, operation_number)) continue;
      way.drain_access();
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

TEST_CASE("ranks meet, use each other's buffers and part; a stop in between harms nobody") {
  model::study rendezvous("crossing");
  const model::bounds two = model::bound_of(2);
  using in_threads = stopped_while_used<address_space::one>;
  using in_processes = stopped_while_used<address_space::several>;
  rendezvous.holds<swaps<>>("swap lines", 2, 3, two, of<swaps<>>(2, 3));
  rendezvous.holds<swaps<>>("swap lines", 3, 2, model::bound_of(1), of<swaps<>>(3, 2));
  rendezvous.holds<uses>("use buffers", 2, 2, two, of<uses>(2, 2, 0));
  rendezvous.holds<uses>("use buffers, staging", 2, 1, two, of<uses>(2, 1, 3));
  rendezvous.holds<uses>("use buffers, staging", 3, 1, model::bound_of(1), of<uses>(3, 1, 1));
  rendezvous.holds<uses>("use buffers, staging", 3, 2, model::bound_of(0), of<uses>(3, 2, 1));
  rendezvous.holds<in_threads>("stopped, threads", 2, 1, two, of<in_threads>(2, 1));
  rendezvous.holds<in_processes>("stopped, processes", 2, 1, two, of<in_processes>(2, 1));
  rendezvous.holds<in_threads>("stopped, threads", 2, 2, two, of<in_threads>(2, 2));
  rendezvous.holds<in_threads>("stopped, threads", 3, 1, model::bound_of(1), of<in_threads>(3, 1));
  rendezvous.holds<in_threads>("stopped, threads", 3, 2, model::bound_of(0), of<in_threads>(3, 2));
  rendezvous.holds<in_processes>("stopped, processes", 2, 2, two, of<in_processes>(2, 2));
  rendezvous.holds<in_processes>("stopped, processes", 3, 2, model::bound_of(0), of<in_processes>(3, 2));
  rendezvous.seed_mistakes(
      {"crossing.hpp", "place.hpp", "crossing.cpp#order_streaming_stores", "stop_word.hpp#stopped_.store"},
      {{"stopped_.store(1", "left out", "The world does not stop then: see stop, where it is caught."},
       {"rounds.load(order)", " -> ",
        "Who announces itself before the writer looks for sleepers is woken; who does after that sees the store by "
        "that alone."},
       {"outside.load(order)", " -> ", "The same."}});
  using narrow = swaps<narrow_place>;
  rendezvous.is_caught<narrow>("one line instead of two", two, of<narrow>(2, 3));
  rendezvous.is_caught<uses>("one half of staging instead of two", two, of<uses>(2, 1, 2, 1));
  rendezvous.sum_up();
}
