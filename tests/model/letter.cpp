// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Letters between ranks: the box, the bytes it speaks of, the bells, and what happens when a sender gives up while its
// letter is in the box or being read.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>

#include "belay/backend/host/letter.hpp"
#include "belay/comm/wait_word.hpp"
#include "model/explorer/study.hpp"

namespace {

using belay::host::address_space;
using belay::host::letter;
using bell = belay::wait_word<belay::sharing::several_processes, model::atomics, model::kernel>;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct box {
  belay::host::letter_flap<model::atomics> flap;
  model::plain<int> content{"a letter"};
};

// Rank r sends to r + 1, so many letters one after the other, while it receives from r - 1; or rank 0 only sends and
// the last one only receives. As the post office does it: each look moves what can be moved.
struct letters {
  int ranks;
  int count;
  bool in_a_ring;
  std::array<box, 3> boxes;  // of each sender
  std::array<bell, 3> desks;
  std::array<model::plain<int>, 3> bytes{model::plain<int>{"a sender's bytes"}, model::plain<int>{"a sender's bytes"},
                                         model::plain<int>{"a sender's bytes"}};

  letters(int n, int c, bool ring) : ranks(n), count(c), in_a_ring(ring) {}
  [[nodiscard]] model::cast_list cast() const { return {ranks, 0, 0}; }

  void run(int me) {
    const int next = (me + 1) % ranks;
    const int before = (me + ranks - 1) % ranks;
    int sent = in_a_ring || me != ranks - 1 ? 0 : count;
    int received = in_a_ring || me != 0 ? 0 : count;
    bool posted = false;
    const auto progress = [&](std::memory_order) {
      bool moved = false;
      while (sent < count) {
        box& out = boxes[at(me)];
        if (out.flap.look() != letter::empty) break;
        if (posted) {
          posted = false;
          ++sent;
        } else {
          bytes[at(me)].write(100 * me + sent);
          out.content.write(sent);
          out.flap.put();
          posted = true;
          desks[at(next)].ring_sleepers();
          break;
        }
        moved = true;
      }
      while (received < count) {
        box& in = boxes[at(before)];
        if (!in.flap.open()) break;
        model::expect(in.content.read() == received, "another letter");
        model::expect(bytes[at(before)].read() == 100 * before + received, "another letter's bytes");
        ++received;
        model::expect(in.flap.empty(), "taken back without a reason");
        desks[at(before)].ring_sleepers();
        moved = true;
      }
      return moved || (sent == count && received == count);
    };
    while (sent < count || received < count) {
      (void)belay::wait_until(desks[at(me)], {}, progress, [] { return false; });
    }
  }
  void check() const {}
};

// The sender gives up at any moment, and changes its bytes at once. Among threads nobody reads them then; between
// processes nobody believes what it read.
template <address_space Space>
struct taken_back {
  box here;
  model::plain<int> bytes{"a sender's bytes"};
  model::atomic<int> seen_bytes;
  model::atomic<int> stopped;

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void write(int value) {
    if constexpr (Space == address_space::one) bytes.write(value);
    else seen_bytes.store(value, std::memory_order_relaxed);
  }
  [[nodiscard]] int read() {
    if constexpr (Space == address_space::one) return bytes.read();
    else return seen_bytes.load(std::memory_order_relaxed);
  }
  void run(int me) {
    if (me == 0) {
      write(7);
      here.content.write(7);
      here.flap.put();
      stopped.store(1, std::memory_order_seq_cst);
      here.flap.take_back(Space);
      write(99);
      return;
    }
    while (!here.flap.open()) {
      if (stopped.load(std::memory_order_acquire) != 0) return;
      model::atomics::yield();
    }
    const int got = read();
    model::expect(here.content.read() == 7, "another letter");
    if (here.flap.empty()) model::expect(got == 7, "success with other bytes");
    else model::expect(Space == address_space::several, "a thread's letter was taken back while it was read");
  }
  void check() const {}
};

// The receiver finds that a letter does not fit: the cause is there before the sender can ask for it.
struct refused {
  box here;
  bell desk;
  model::plain<int> cause{"the cause"};

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void run(int me) {
    if (me == 0) {
      here.content.write(7);
      here.flap.put();
      const auto decided = [&](std::memory_order) {
        const letter state = here.flap.look();
        return state != letter::full && state != letter::reading;
      };
      (void)belay::wait_until(desk, {}, decided, [] { return false; });
      model::expect(cause.read() == 1, "refused before the cause is known");
      here.flap.take_back(address_space::one);
      return;
    }
    while (!here.flap.open()) model::atomics::yield();
    model::expect(here.content.read() == 7, "another letter");
    cause.write(1);
    here.flap.refuse();
    desk.ring();
  }
  void check() const {}
};

template <class Scenario, class... Numbers>
auto of(Numbers... numbers) {
  return [=](std::optional<Scenario>& it) { it.emplace(numbers...); };
}

}  // namespace

TEST_CASE("letters arrive once, whole and in order, and none is read after its sender has given up") {
  model::study study("letter");
  using in_threads = taken_back<address_space::one>;
  using in_processes = taken_back<address_space::several>;
  study.holds<in_threads>("taken back, threads", 2, 1, {}, of<in_threads>());
  study.holds<in_processes>("taken back, processes", 2, 1, {}, of<in_processes>());
  study.holds<refused>("refused", 2, 1, {}, of<refused>());
  study.holds<letters>("one way", 2, 2, model::bound_of(3), of<letters>(2, 2, false));
  study.holds<letters>("both ways", 2, 2, model::bound_of(2), of<letters>(2, 2, true));
  study.holds<letters>("in a ring", 3, 1, model::bound_of(1), of<letters>(3, 1, true));
  study.holds<letters>("in a ring", 3, 2, model::bound_of(0), of<letters>(3, 2, true));
  study.seed_mistakes({"letter.hpp"}, {{"return look() == letter::full", "acquire -> relaxed",
                                        "look() has acquired the same letter; only its receiver opens it."},
                                       {"letter::refused, std::memory_order_acquire", "acquire -> relaxed",
                                        "Only the failure reads behind it, and a failure may not be stronger for GCC 12."}});
  study.sum_up();
}
