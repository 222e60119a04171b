// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a world stops: several ranks abort it at once, others wait; one of them may be killed at any point.
#include "belay/backend/host/failure/abort_flag.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>

#include "belay/comm/event_count.hpp"
#include "model/explorer/study.hpp"

namespace {

using doorbell = belay::event_count<belay::sharing::several_processes, model::atomics, model::kernel>;

// What world_status does with the flag: the cause is plain memory, all ranks are notified.
struct world {
  int ranks;
  belay::host::abort_flag<model::atomics> word;
  model::plain<int> cause{"the cause"};
  std::array<doorbell, 3> doorbells;

  void notify_all_ranks() {
    for (int q = 0; q < ranks; ++q) doorbells[static_cast<std::size_t>(q)].notify_all();
  }
  bool stop(int why) {
    return word.abort(
        static_cast<std::uint32_t>(why), [&] { cause.write(why); }, [&] { notify_all_ranks(); });
  }
  // The mistake: the world is stopped before it is written why.
  bool stop_and_say_later(int why) {
    const bool first = word.abort(
        static_cast<std::uint32_t>(why), [] {}, [&] { notify_all_ranks(); });
    if (first) cause.write(why);
    return first;
  }
  void await_stop(int on) {
    (void)belay::wait_until(
        doorbells[static_cast<std::size_t>(on)], {}, [&](std::memory_order) { return false; },
        [&] { return word.aborted(); });
  }
};

// The last `waiting` ranks only wait, the others stop the world; then all ranks read the cause, some with a limit.
struct several_stop {
  int ranks;
  int waiting;
  int answers;  // to "go on?"; 1: always yes
  world shared{ranks, {}, model::plain<int>{"the cause"}, {}};
  std::array<int, 3> told{-1, -1, -1};

  several_stop(int n, int w, int a) : ranks(n), waiting(w), answers(a) {}
  [[nodiscard]] model::cast_list cast() const { return {ranks, 0, 0}; }
  void run(int me) {
    if (me < ranks - waiting) {
      shared.stop(100 + me);
    } else {
      shared.await_stop(me == 0 ? 0 : me - 1);
    }
    const bool there = shared.word.cause_is_written([&](std::uint32_t writer) {
      model::expect(writer >= 100 && writer < 100 + static_cast<std::uint32_t>(ranks - waiting), "written by nobody");
      return model::now().pick(answers) == 0;
    });
    model::expect(there || answers > 1, "stopped, and no cause");
    told[static_cast<std::size_t>(me)] = there ? shared.cause.read() : 0;
  }
  void check() const {
    for (int q = 1; q < ranks; ++q) model::expect(told[static_cast<std::size_t>(q)] == told[0], "two first causes");
  }
};

// Between processes. Rank 0 stops the world and may be killed at it; another one sees its end and stops the world too.
struct one_dies {
  int ranks;
  world shared{ranks, {}, model::plain<int>{"the cause"}, {}};
  model::atomic<int> ended;
  std::array<int, 3> told{-1, -1, -1};

  explicit one_dies(int n) : ranks(n) {}
  [[nodiscard]] model::cast_list cast() const { return {ranks, 0, 1}; }
  void run(int me) {
    if (me == 0) {
      model::now().tell_death_by(0, ended.word());
      shared.stop(100);
      ended.store(1, std::memory_order_release);
      return;
    }
    if (me == 1) {
      while (ended.load(std::memory_order_acquire) == 0) model::atomics::yield();
      shared.stop(101);
    } else {
      shared.await_stop(0);
    }
    model::expect(shared.word.aborted(), "all is said, and the world goes on");
    // The search decides how long to wait; no longer than until rank 0 has ended.
    const bool there = shared.word.cause_is_written(
        [&](std::uint32_t) { return ended.load(std::memory_order_acquire) == 0 && model::now().pick(2) == 0; });
    told[static_cast<std::size_t>(me)] = there ? shared.cause.read() : 0;
  }
  void check() const {
    for (int q = 2; q < ranks; ++q) model::expect(told[static_cast<std::size_t>(q)] == told[1], "two first causes");
  }
};

struct one_says_later {
  world shared{2, {}, model::plain<int>{"the cause"}, {}};

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void run(int me) {
    if (me == 0)
      shared.stop_and_say_later(100);
    else
      shared.await_stop(0);
    model::expect(shared.word.cause_is_written([](std::uint32_t) { return true; }), "stopped, and no cause");
    model::expect(shared.cause.read() == 100, "another cause");
  }
  void check() const {}
};

// The survivors give a world up while a rank of it, which they did not wait for, stops it or still works in it.
struct given_up {
  int ranks;
  world shared{ranks, {}, model::plain<int>{"the cause"}, {}};

  explicit given_up(int n) : ranks(n) {}
  [[nodiscard]] model::cast_list cast() const { return {ranks, 0, 0}; }
  void run(int me) {
    if (me == 0) {
      shared.word.revoke();
      shared.stop(100);
    } else if (me == 1) {
      shared.await_stop(0);
    } else {
      shared.stop(102);
      return;
    }
    model::expect(shared.word.cause_is_written([](std::uint32_t) { return true; }), "stopped, and no cause");
    const int why = shared.cause.read();
    model::expect(why == 100 || (why == 102 && ranks == 3), "another cause");
    if (me == 0) model::expect(shared.word.revoked(), "given up, and not revoked");
    if (ranks == 2) model::expect(shared.word.revoked(), "a call does not end in revoked");
  }
  void check() const {}
};

}  // namespace

TEST_CASE("there is one first cause, and every rank that aborts or waits gets it") {
  model::study stop("abort_flag");
  const auto several = [](int ranks, int waiting, int answers = 1) {
    return [=](std::optional<several_stop>& it) { it.emplace(ranks, waiting, answers); };
  };
  stop.holds<several_stop>("two abort at once", 2, 1, {}, several(2, 0));
  stop.holds<several_stop>("one aborts, one waits", 2, 1, {}, several(2, 1));
  stop.holds<several_stop>("two abort, without polling", 2, 1, {}, several(2, 0, 2));
  const model::bounds bound = model::bound_of(2);
  stop.holds<several_stop>("two abort, one waits", 3, 1, bound, several(3, 1));
  stop.holds<several_stop>("three abort at once", 3, 1, bound, several(3, 0));
  stop.holds<one_dies>("one aborts and may be killed", 2, 1, {}, [](std::optional<one_dies>& it) { it.emplace(2); });
  stop.holds<one_dies>("killed, another waits", 3, 1, bound, [](std::optional<one_dies>& it) { it.emplace(3); });
  stop.holds<given_up>("given up", 2, 1, {}, [](std::optional<given_up>& it) { it.emplace(2); });
  stop.holds<given_up>("given up, and aborted", 3, 1, bound, [](std::optional<given_up>& it) { it.emplace(3); });
  stop.seed_mistakes(
      {"abort_flag.hpp"},
      {{"aborted_.store(1", "seq_cst -> release",
        "Waiting ranks are woken by notifications. A rank that begins an access needs it: there it is caught."},
       {"void revoke()", "release -> relaxed",
        "Nothing is written before it, and the world is stopped after it, in order with everything."},
       {"void revoke()", "after the next operation", "That one claims the cause; the world is stopped later."},
       {"state, lost, std::memory_order_acquire", "acquire -> relaxed",
        "Only the failure reads behind it, and a failure may not be stronger for GCC 12."},
       {"bool revoked()", "acquire -> relaxed", "Nothing is read behind it."}});
  stop.is_caught<one_says_later>("stopped before the cause is written", {},
                                 [](std::optional<one_says_later>& it) { it.emplace(); });
  stop.sum_up();
}
