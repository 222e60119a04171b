// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Announce, check again, sleep, against change, check for sleepers, wake. The modelled kernel never ends a sleep by
// itself, so a lost wake-up is a deadlock.
#include "belay/comm/event_count.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <optional>

#include "model/explorer/study.hpp"

namespace {

using doorbell = belay::event_count<belay::sharing::one_process, model::atomics, model::kernel>;

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

// The sleeper checks before it is announced, or not at all.
enum class slip { none, no_second_check, announces_late };

template <slip Slip>
class wrong_event_count {
 public:
  [[nodiscard]] std::uint32_t key() const noexcept { return notifications_.load(std::memory_order_acquire); }
  void notify_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    notifications_.fetch_add(1, std::memory_order_seq_cst);
    model::kernel::wake_all(notifications_);
  }
  template <class Done>
  void wait_unless(Done done, std::uint32_t key, long slice_ns) noexcept {
    const bool early = Slip == slip::announces_late && done(std::memory_order_seq_cst);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (!early) model::kernel::sleep(notifications_, key, slice_ns);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  model::atomic<std::uint32_t> notifications_{0};
  model::atomic<std::uint32_t> sleepers_{0};
};

// Rank 0 changes the state once a round; the others wait for it each round, and answer, where that is asked for.
enum class notifies { always, sleepers, after_release };

template <class Word, notifies How>
struct rounds_of {
  int ranks;
  int rounds;
  bool answered;
  Word changed_by_0;
  std::array<Word, 3> doorbells;
  model::atomic<std::uint32_t> state{0};
  std::array<model::atomic<std::uint32_t>, 3> answers;
  model::plain<int> data{"what is published"};

  rounds_of(int n, int r, bool a) : ranks(n), rounds(r), answered(a) {}
  [[nodiscard]] model::cast_list cast() const { return {ranks, 0, 0}; }

  static void await(Word& on, const model::atomic<std::uint32_t>& word, std::uint32_t value) {
    const auto done = [&](std::memory_order order) { return word.load(order) >= value; };
    if constexpr (requires { on.sleep(0, 0); }) {
      (void)belay::wait_until(on, {}, done, [] { return false; });
    } else {
      while (!done(std::memory_order_acquire)) {
        const std::uint32_t key = on.key();
        if (!done(std::memory_order_acquire)) on.wait_unless(done, key, 0);
      }
    }
  }
  static void change(model::atomic<std::uint32_t>& word, std::uint32_t value, Word& who) {
    if constexpr (How == notifies::after_release) {
      word.store(value, std::memory_order_release);
      who.notify_after_release();
      return;
    }
    word.store(value, std::memory_order_seq_cst);
    if constexpr (How == notifies::always)
      who.notify_all();
    else
      who.notify_sleepers();
  }
  void run(int me) {
    for (std::uint32_t round = 1; round <= static_cast<std::uint32_t>(rounds); ++round) {
      if (me == 0) {
        if (answered || round == 1) data.write(static_cast<int>(round));
        change(state, round, changed_by_0);
        for (int q = 1; q < ranks && answered; ++q) await(doorbells[at(q)], answers[at(q)], round);
      } else {
        await(changed_by_0, state, round);
        model::expect(data.read() == (answered ? static_cast<int>(round) : 1), "what is published");
        if (!answered) continue;
        change(answers[at(me)], round, doorbells[at(me)]);
      }
    }
  }
  void check() const {}
};

// A notification alone: the notifier has changed plain memory before.
struct notification_only {
  doorbell word;
  model::plain<int> data{"what the notification tells"};

  [[nodiscard]] model::cast_list cast() const { return {2, 0, 0}; }
  void run(int me) {
    if (me == 0) {
      data.write(1);
      word.notify_all();
      return;
    }
    const std::uint32_t before = 0;
    while (word.key() == before) word.sleep(before, 0);
    model::expect(data.read() == 1, "what the notification tells");
  }
  void check() const {}
};

template <class Scenario, class... Numbers>
auto of(Numbers... numbers) {
  return [=](std::optional<Scenario>& it) { it.emplace(numbers...); };
}

}  // namespace

TEST_CASE("no wake-up is lost") {
  model::study word("event_count");
  using checking = rounds_of<doorbell, notifies::sleepers>;
  using always = rounds_of<doorbell, notifies::always>;
  using released = rounds_of<doorbell, notifies::after_release>;
  const model::bounds three = model::bound_of(3);
  word.holds<notification_only>("the doorbell alone", 2, 1, {},
                                [](std::optional<notification_only>& it) { it.emplace(); });
  word.holds<checking>("look for sleepers", 2, 2, {}, of<checking>(2, 2, false));
  word.holds<checking>("look for sleepers, answer", 2, 2, three, of<checking>(2, 2, true));
  word.holds<released>("after a release", 2, 2, {}, of<released>(2, 2, false));
  word.holds<released>("after a release, answer", 2, 2, three, of<released>(2, 2, true));
  word.holds<released>("after a release", 3, 2, three, of<released>(3, 2, false));
  word.holds<always>("notify always", 2, 2, three, of<always>(2, 2, true));
  word.holds<checking>("look for sleepers", 3, 2, three, of<checking>(3, 2, false));
  word.holds<always>("notify always", 3, 2, model::bound_of(2), of<always>(3, 2, false));
  word.seed_mistakes(
      {"event_count.hpp", "event_count.cpp#word.store"},
      {{"void wake() noexcept { notifications_.fetch_add(1", " -> ",
        "The state was stored before, in order with the check for sleepers. A sleeper is woken; a waiter that comes "
        "to the kernel's lock later finds the new count behind it."},
       {"sleepers_->fetch_sub(1", "", "Too many sleepers are counted: that costs a needless wake."},
       {"wait_unless([&]", "load", "The kernel compares the same word again before it sleeps."}});
  using blind = rounds_of<wrong_event_count<slip::no_second_check>, notifies::sleepers>;
  using late = rounds_of<wrong_event_count<slip::announces_late>, notifies::sleepers>;
  word.is_caught<blind>("no check after the announcement", three, of<blind>(2, 2, false));
  word.is_caught<late>("announced after the second check", three, of<late>(2, 2, false));
  word.sum_up();
}
