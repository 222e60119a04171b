// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Letters between ranks: the box, the bytes it speaks of, the bells, transfers of several letters to a rank that joins
// meanwhile, and what happens when a sender gives up while its letter is in the box or being read.
#include "belay/backend/host/p2p/mailbox_state.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "belay/backend/host/p2p/transfer.hpp"
#include "belay/comm/event_count.hpp"
#include "model/explorer/study.hpp"

namespace {

using belay::host::address_space;
using belay::host::mailbox_state;
using doorbell = belay::event_count<belay::sharing::several_processes, model::atomics, model::kernel>;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct box {
  belay::host::mailbox_flap<model::atomics> flap;
  model::plain<int> content{"a letter"};
};

// Rank r sends to r + 1, so many letters one after the other, while it receives from r - 1; or rank 0 only sends and
// the last one only receives. As the post office does it: each look moves what can be moved.
struct letters {
  int ranks;
  int count;
  bool in_a_ring;
  std::array<box, 3> boxes;  // of each sender
  std::array<doorbell, 3> desks;
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
        if (out.flap.look() != mailbox_state::empty) break;
        if (posted) {
          posted = false;
          ++sent;
        } else {
          bytes[at(me)].write(100 * me + sent);
          out.content.write(sent);
          out.flap.put();
          posted = true;
          desks[at(next)].notify_sleepers();
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
        desks[at(before)].notify_sleepers();
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
    if constexpr (Space == address_space::one)
      bytes.write(value);
    else
      seen_bytes.store(value, std::memory_order_relaxed);
  }
  [[nodiscard]] int read() {
    if constexpr (Space == address_space::one)
      return bytes.read();
    else
      return seen_bytes.load(std::memory_order_relaxed);
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
    if (here.flap.empty())
      model::expect(got == 7, "success with other bytes");
    else
      model::expect(Space == address_space::several, "a thread's letter was taken back while it was read");
  }
  void check() const {}
};

// The receiver finds that a letter does not fit: the cause is there before the sender can ask for it.
struct refused {
  box here;
  doorbell desk;
  model::plain<int> cause{"the cause"};

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void run(int me) {
    if (me == 0) {
      here.content.write(7);
      here.flap.put();
      const auto decided = [&](std::memory_order) {
        const mailbox_state state = here.flap.look();
        return state != mailbox_state::full && state != mailbox_state::reading;
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
    desk.notify_all();
  }
  void check() const {}
};

// Transfers of several pieces each to a rank that joins while they are sent: from then on the sender may tell it to
// read for itself. As the post office does it.
template <class Sender = belay::host::transfer_end, class Receiver = belay::host::transfer_end>
struct joins_late {
  static constexpr std::uint64_t total = 3, room = 1;
  int count;
  belay::host::mailbox_flap<model::atomics> flap;
  model::plain<belay::host::transfer_step> said{"a letter"};
  model::plain<int> piece{"a piece"};
  model::atomic<int> joined{0};
  doorbell sends{}, receives{};

  explicit joins_late(int c) : count(c) {}
  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  [[nodiscard]] static int byte(int transfer, std::uint64_t i) { return 10 * transfer + static_cast<int>(i); }

  void send() {
    Sender end;
    for (int sent = 0; sent < count;) {
      const belay::host::transfer_step step = end.next(total, room, [&] {
        const bool reads = joined.load(std::memory_order_relaxed) != 0;
        return reads ? belay::host::transfer_path::cma : belay::host::transfer_path::pieces;
      });
      said.write(step);
      if (step.path == belay::host::transfer_path::pieces) piece.write(byte(sent, step.before));
      flap.put();
      receives.notify_sleepers();
      (void)belay::wait_until(
          sends, {}, [&](std::memory_order) { return flap.look() == mailbox_state::empty; }, [] { return false; });
      if (end.advance(step)) ++sent;
    }
  }
  void receive() {
    joined.store(1, std::memory_order_relaxed);
    Receiver end;
    std::array<int, total> got{};
    for (int received = 0; received < count;) {
      bool opened = false;  // (it may be asked again)
      const auto open = [&](std::memory_order) { return opened = opened || flap.open(); };
      (void)belay::wait_until(receives, {}, open, [] { return false; });
      const belay::host::transfer_step step = said.read();
      model::expect(end.continues(step, total, room), "a letter that does not continue its transfer");
      for (std::uint64_t i = step.before; i < step.before + step.here && i < total; ++i) {
        got[i] = step.path == belay::host::transfer_path::pieces ? piece.read() : byte(received, i);
      }
      const bool over = end.advance(step);
      model::expect(end.moved() < total, "a cursor beyond the end");
      for (std::uint64_t i = 0; over && i < total; ++i)
        model::expect(got[i] == byte(received, i), "another transfer's bytes");
      if (over) ++received;
      model::expect(flap.empty(), "taken back without a reason");
      sends.notify_sleepers();
    }
  }
  void run(int me) {
    if (me == 0)
      send();
    else
      receive();
  }
  void check() const {}
};

// The sender decides anew for each letter.
struct decides_again : belay::host::transfer_end {
  template <class Decide>
  [[nodiscard]] belay::host::transfer_step next(std::uint64_t total, std::uint64_t room, Decide decide) {
    belay::host::transfer_step mailbox_state = transfer_end::next(total, room, decide);
    mailbox_state.path = decide();
    mailbox_state.here = total - mailbox_state.before;
    if (mailbox_state.path == belay::host::transfer_path::pieces)
      mailbox_state.here = std::min(room, mailbox_state.here);
    return mailbox_state;
  }
};
// And a receiver that takes that, and adds the whole where a letter is no piece.
struct adds_the_whole {
  std::uint64_t sum = 0;
  [[nodiscard]] static bool continues(const belay::host::transfer_step&, std::uint64_t, std::uint64_t) { return true; }
  bool advance(const belay::host::transfer_step& mailbox_state) {
    sum += mailbox_state.path == belay::host::transfer_path::pieces ? mailbox_state.here : mailbox_state.total;
    if (sum != mailbox_state.total) return false;
    sum = 0;
    return true;
  }
  [[nodiscard]] std::uint64_t moved() const { return sum; }
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
  study.holds<joins_late<>>("joins between two pieces", 2, 1, model::bound_of(3), of<joins_late<>>(1));
  study.holds<joins_late<>>("joins between two pieces", 2, 2, model::bound_of(2), of<joins_late<>>(2));
  study.seed_mistakes({"letter.hpp"},
                      {{"return look() == letter::full", "acquire -> relaxed",
                        "look() has acquired the same letter; only its receiver opens it."},
                       {"letter::refused, std::memory_order_acquire", "acquire -> relaxed",
                        "Only the failure reads behind it, and a failure may not be stronger for GCC 12."}});
  using stubborn = joins_late<decides_again>;
  using as_it_was = joins_late<decides_again, adds_the_whole>;
  study.is_caught<stubborn>("a path decided for each letter", model::bound_of(3), of<stubborn>(1));
  study.is_caught<as_it_was>("the same, and a receiver that adds the whole", model::bound_of(3), of<as_it_was>(1));
  study.sum_up();
}
