// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Messages between ranks: the mailbox, the bytes it refers to, the doorbells, transfers of several messages to a rank
// that joins meanwhile, and what happens when a sender gives up while its message is in the mailbox or being read.
#include "belay/backend/host/p2p/mailbox.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "belay/comm/event_count.hpp"
#include "model/explorer/study.hpp"

namespace {

using belay::host::address_space;
using belay::host::mailbox_state;
using doorbell = belay::event_count<belay::sharing::several_processes, model::atomics, model::kernel>;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct mailbox {
  belay::host::mailbox_flag<model::atomics> flag;
  model::plain<int> content{"a message"};
};

// Rank r sends so many messages to r + 1, one after the other, while it receives from r - 1; or rank 0 only sends and
// the last one only receives. As p2p_transport does it: each look moves what can be moved.
struct messages {
  int ranks;
  int count;
  bool in_a_ring;
  std::array<mailbox, 3> mailboxes;  // of each sender
  std::array<doorbell, 3> doorbells;
  std::array<model::plain<int>, 3> bytes{model::plain<int>{"a sender's bytes"}, model::plain<int>{"a sender's bytes"},
                                         model::plain<int>{"a sender's bytes"}};

  messages(int n, int c, bool ring) : ranks(n), count(c), in_a_ring(ring) {}
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
        mailbox& out = mailboxes[at(me)];
        if (out.flag.state() != mailbox_state::empty) break;
        if (posted) {
          posted = false;
          ++sent;
        } else {
          bytes[at(me)].write(100 * me + sent);
          out.content.write(sent);
          out.flag.post();
          posted = true;
          doorbells[at(next)].notify_sleepers();
          break;
        }
        moved = true;
      }
      while (received < count) {
        mailbox& in = mailboxes[at(before)];
        if (!in.flag.begin_read()) break;
        model::expect(in.content.read() == received, "another message");
        model::expect(bytes[at(before)].read() == 100 * before + received, "another message's bytes");
        ++received;
        model::expect(in.flag.end_read(), "taken back without a reason");
        doorbells[at(before)].notify_sleepers();
        moved = true;
      }
      return moved || (sent == count && received == count);
    };
    while (sent < count || received < count) {
      (void)belay::wait_until(doorbells[at(me)], {}, progress, [] { return false; });
    }
  }
  void check() const {}
};

// The sender gives up at any time, and changes its bytes at once. Among threads the receiver does not read them then;
// between processes it does not use what it read.
template <address_space Space>
struct taken_back {
  mailbox here;
  model::plain<int> bytes{"a sender's bytes"};
  model::atomic<int> shared_bytes;
  model::atomic<int> aborted;

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void write(int value) {
    if constexpr (Space == address_space::one)
      bytes.write(value);
    else
      shared_bytes.store(value, std::memory_order_relaxed);
  }
  [[nodiscard]] int read() {
    if constexpr (Space == address_space::one)
      return bytes.read();
    else
      return shared_bytes.load(std::memory_order_relaxed);
  }
  void run(int me) {
    if (me == 0) {
      write(7);
      here.content.write(7);
      here.flag.post();
      aborted.store(1, std::memory_order_seq_cst);
      here.flag.take_back(Space);
      write(99);
      return;
    }
    while (!here.flag.begin_read()) {
      if (aborted.load(std::memory_order_acquire) != 0) return;
      model::atomics::yield();
    }
    const int got = read();
    model::expect(here.content.read() == 7, "another message");
    if (here.flag.end_read())
      model::expect(got == 7, "success with other bytes");
    else
      model::expect(Space == address_space::several, "a thread's message was taken back while it was read");
  }
  void check() const {}
};

// The receiver finds that a message does not fit: the cause is there before the sender can ask for it.
struct refused {
  mailbox here;
  doorbell sender_doorbell;
  model::plain<int> cause{"the cause"};

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void run(int me) {
    if (me == 0) {
      here.content.write(7);
      here.flag.post();
      const auto decided = [&](std::memory_order) {
        const mailbox_state state = here.flag.state();
        return state != mailbox_state::full && state != mailbox_state::reading;
      };
      (void)belay::wait_until(sender_doorbell, {}, decided, [] { return false; });
      model::expect(cause.read() == 1, "refused before the cause is known");
      here.flag.take_back(address_space::one);
      return;
    }
    while (!here.flag.begin_read()) model::atomics::yield();
    model::expect(here.content.read() == 7, "another message");
    cause.write(1);
    here.flag.refuse();
    sender_doorbell.notify_all();
  }
  void check() const {}
};

// Transfers of several pieces each to a rank that joins while they are sent: from then on the sender may tell it to
// read for itself. As p2p_transport does it.
template <class Sender = belay::host::transfer_end, class Receiver = belay::host::transfer_end>
struct joins_late {
  static constexpr std::uint64_t total = 3, room = 1;
  int count;
  belay::host::mailbox_flag<model::atomics> flag;
  model::plain<belay::host::transfer_step> posted{"a message"};
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
      posted.write(step);
      if (step.path == belay::host::transfer_path::pieces) piece.write(byte(sent, step.offset));
      flag.post();
      receives.notify_sleepers();
      (void)belay::wait_until(
          sends, {}, [&](std::memory_order) { return flag.state() == mailbox_state::empty; }, [] { return false; });
      if (end.advance(step)) ++sent;
    }
  }
  void receive() {
    joined.store(1, std::memory_order_relaxed);
    Receiver end;
    std::array<int, total> got{};
    for (int received = 0; received < count;) {
      bool opened = false;  // (it may be asked again)
      const auto open = [&](std::memory_order) { return opened = opened || flag.begin_read(); };
      (void)belay::wait_until(receives, {}, open, [] { return false; });
      const belay::host::transfer_step step = posted.read();
      model::expect(end.continues(step, total, room), "a message that does not continue its transfer");
      for (std::uint64_t i = step.offset; i < step.offset + step.bytes && i < total; ++i) {
        got[i] = step.path == belay::host::transfer_path::pieces ? piece.read() : byte(received, i);
      }
      const bool over = end.advance(step);
      model::expect(end.moved() < total, "a cursor beyond the end");
      for (std::uint64_t i = 0; over && i < total; ++i)
        model::expect(got[i] == byte(received, i), "another transfer's bytes");
      if (over) ++received;
      model::expect(flag.end_read(), "taken back without a reason");
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

// The sender decides again for each message.
struct decides_again : belay::host::transfer_end {
  template <class Decide>
  [[nodiscard]] belay::host::transfer_step next(std::uint64_t total, std::uint64_t room, Decide decide) {
    belay::host::transfer_step step = transfer_end::next(total, room, decide);
    step.path = decide();
    step.bytes = total - step.offset;
    if (step.path == belay::host::transfer_path::pieces) step.bytes = std::min(room, step.bytes);
    return step;
  }
};
// And a receiver that accepts that, and adds the whole where a message is no piece.
struct adds_the_whole {
  std::uint64_t sum = 0;
  [[nodiscard]] static bool continues(const belay::host::transfer_step&, std::uint64_t, std::uint64_t) { return true; }
  bool advance(const belay::host::transfer_step& step) {
    sum += step.path == belay::host::transfer_path::pieces ? step.bytes : step.total;
    if (sum != step.total) return false;
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

TEST_CASE("messages arrive once, whole and in order, and none is read after its sender has given up") {
  model::study study("mailbox_state");
  using in_threads = taken_back<address_space::one>;
  using in_processes = taken_back<address_space::several>;
  study.holds<in_threads>("taken back, threads", 2, 1, {}, of<in_threads>());
  study.holds<in_processes>("taken back, processes", 2, 1, {}, of<in_processes>());
  study.holds<refused>("refused", 2, 1, {}, of<refused>());
  study.holds<messages>("one way", 2, 2, model::bound_of(3), of<messages>(2, 2, false));
  study.holds<messages>("both ways", 2, 2, model::bound_of(2), of<messages>(2, 2, true));
  study.holds<messages>("in a ring", 3, 1, model::bound_of(1), of<messages>(3, 1, true));
  study.holds<messages>("in a ring", 3, 2, model::bound_of(0), of<messages>(3, 2, true));
  study.holds<joins_late<>>("joins between two pieces", 2, 1, model::bound_of(3), of<joins_late<>>(1));
  study.holds<joins_late<>>("joins between two pieces", 2, 2, model::bound_of(2), of<joins_late<>>(2));
  study.seed_mistakes({"mailbox.hpp"},
                      {{"return state() == mailbox_state::full", "acquire -> relaxed",
                        "state() has acquired the same message; only its receiver reads it."},
                       {"mailbox_state::refused, std::memory_order_acquire", "acquire -> relaxed",
                        "Only the failure reads behind it, and a failure may not be stronger for GCC 12."}});
  using stubborn = joins_late<decides_again>;
  using as_it_was = joins_late<decides_again, adds_the_whole>;
  study.is_caught<stubborn>("a path decided for each message", model::bound_of(3), of<stubborn>(1));
  study.is_caught<as_it_was>("the same, and a receiver that adds the whole", model::bound_of(3), of<as_it_was>(1));
  study.sum_up();
}
