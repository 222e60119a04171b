// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the survivors of a world get one list of the ranks that are left: the arbiter's own steps, with ranks that ask,
// end, are killed at any moment, or are stopped and have to be killed first. Messages and the ends of processes are
// words that the kernel keeps in one order for all; what a rank is told is plain memory behind them.
#include "belay/backend/host/membership/membership.hpp"

#include <doctest/doctest.h>

#include <array>
#include <optional>
#include <vector>

#include "model/explorer/study.hpp"

namespace {

constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }

// The steps with a mistake in them.
enum class slip { none, does_not_wait, looks_once_before, looks_once_after, keeps_the_list, counts_who_left };

template <slip Slip>
struct steps {
  template <class Arbiter>
  static void agree(Arbiter& arbiter, std::vector<int>& survivors) {
    bool gathered = false;
    while (true) {
      bool waiting = false;
      if (Slip != slip::keeps_the_list || !gathered) {
        survivors.clear();
        for (const int rank : arbiter.members()) {
          if (arbiter.asks(rank) || (Slip == slip::counts_who_left && arbiter.has_left(rank)))
            survivors.push_back(rank);
          else if (!arbiter.has_left(rank))
            waiting = true;
        }
        gathered = true;
      }
      if (survivors.empty()) return;
      if (waiting && Slip != slip::does_not_wait) return arbiter.hurry();
      if (Slip != slip::looks_once_after && arbiter.find_dead(survivors)) continue;
      if (!arbiter.renew(survivors)) return;
      if (Slip != slip::looks_once_before && arbiter.find_dead(survivors)) continue;
      return arbiter.tell(survivors);
    }
  }
};
template <>
struct steps<slip::none> {
  template <class Arbiter>
  static void agree(Arbiter& arbiter, std::vector<int>& survivors) {
    belay::host::agree(arbiter, survivors);
  }
};

struct message {
  int list = 0;  // a bit a rank
  int epoch = 0;
};

// The last thread is the arbiter. Each rank shrinks so often; one of them may be killed at any moment, or the last one
// never asks, because it is stopped.
template <slip Slip = slip::none>
struct world {
  static constexpr int goodbye = 99;
  int ranks;
  int rounds;
  bool one_is_stopped;
  std::uint32_t mortals;
  std::array<model::atomic<int>, 3> asked, answered, ended, killed;
  std::array<model::plain<message>, 3> news;
  // What the arbiter knows.
  std::vector<int> present, survivors;
  std::array<int, 3> key{};
  std::array<bool, 3> wishes{}, gone{}, dead_at_renewal{};
  int epoch = 0;
  // What was told, by epoch and rank.
  std::array<std::array<int, 3>, 4> told{};

  world(int n, int r, bool stopped, std::uint32_t may_die)
      : ranks(n), rounds(r), one_is_stopped(stopped), mortals(may_die) {
    for (int q = 0; q < n; ++q) present.push_back(q);
  }
  [[nodiscard]] model::cast_list cast() const { return {ranks + 1, 0, mortals}; }

  void run(int me) {
    if (me == ranks) return arbitrate();
    model::now().tell_death_by(me, ended[at(me)].word());
    if (one_is_stopped && me == ranks - 1) {
      while (killed[at(me)].load(std::memory_order_seq_cst) == 0) model::atomics::yield();
      ended[at(me)].store(1, std::memory_order_seq_cst);
      return;
    }
    for (int round = 1; round <= rounds; ++round) {
      asked[at(me)].store(round, std::memory_order_seq_cst);
      while (answered[at(me)].load(std::memory_order_seq_cst) < round) model::atomics::yield();
      const message said = news[at(me)].read();
      model::expect((said.list >> me & 1) != 0, "a rank is told to go on, and is not in the list");
      model::expect(said.epoch == round, "another epoch's list");
      told[at(said.epoch)][at(me)] = said.list;
    }
    asked[at(me)].store(goodbye, std::memory_order_seq_cst);
  }

  // As the coordinator does it: one loop over all events, and then the steps.
  void arbitrate() {
    while (true) {
      bool all_left = true;
      for (int q = 0; q < ranks; ++q) {
        if (gone[at(q)]) continue;
        const int wish = asked[at(q)].load(std::memory_order_seq_cst);
        if (wish > key[at(q)] && wish != goodbye) {
          key[at(q)] = wish;
          wishes[at(q)] = true;
        }
        if (wish == goodbye || ended[at(q)].load(std::memory_order_seq_cst) != 0) leave(q);
        all_left = all_left && gone[at(q)];
      }
      if (all_left) return;
      steps<Slip>::agree(*this, survivors);
      model::atomics::yield();
    }
  }
  void leave(int rank) {
    gone[at(rank)] = true;
    wishes[at(rank)] = false;
  }

  [[nodiscard]] const std::vector<int>& members() const { return present; }
  [[nodiscard]] bool asks(int rank) const { return wishes[at(rank)]; }
  [[nodiscard]] bool has_left(int rank) const { return gone[at(rank)]; }
  void hurry() {
    if (one_is_stopped && !gone[at(ranks - 1)]) killed[at(ranks - 1)].store(1, std::memory_order_seq_cst);
  }
  [[nodiscard]] bool find_dead(const std::vector<int>& those) {
    bool found = false;
    for (const int q : those) {
      if (gone[at(q)] || ended[at(q)].load(std::memory_order_seq_cst) == 0) continue;
      leave(q);
      found = true;
    }
    return found;
  }
  [[nodiscard]] bool renew(const std::vector<int>&) {
    (void)killed[0].load(std::memory_order_relaxed);  // it takes a while: others go on
    for (int q = 0; q < ranks; ++q) dead_at_renewal[at(q)] = model::now().has_died(q);
    return true;
  }
  void tell(const std::vector<int>& those) {
    message said{0, ++epoch};
    for (const int q : those) said.list |= 1 << q;
    for (int q = 0; q < ranks; ++q) {
      const bool listed = (said.list >> q & 1) != 0;
      model::expect(!listed || !dead_at_renewal[at(q)], "a rank in the list was dead when the new world was made");
      model::expect(!listed || !one_is_stopped || q != ranks - 1, "a stopped rank goes on");
    }
    present = those;
    for (const int q : those) {
      wishes[at(q)] = false;
      news[at(q)].write(said);
      answered[at(q)].store(said.epoch, std::memory_order_seq_cst);
    }
  }
  void check() const {
    for (const auto& one : told) {
      int list = 0;
      for (const int each : one) {
        model::expect(each == 0 || list == 0 || each == list, "two lists");
        if (each != 0) list = each;
      }
    }
  }
};

template <class Scenario, class... Numbers>
auto of(Numbers... numbers) {
  return [=](std::optional<Scenario>& it) { it.emplace(numbers...); };
}

}  // namespace

TEST_CASE("all survivors get the same list, also if another dies meanwhile") {
  model::study study("agreement");
  const model::bounds two = model::bound_of(2);
  study.holds<world<>>("nobody dies", 2, 2, two, of<world<>>(2, 2, false, 0u));
  study.holds<world<>>("one may die", 2, 2, two, of<world<>>(2, 2, false, 3u));
  const model::bounds one = model::bound_of(1);
  study.holds<world<>>("one may die", 3, 1, one, of<world<>>(3, 1, false, 7u));
  study.holds<world<>>("one may die", 3, 2, model::bound_of(0), of<world<>>(3, 2, false, 7u));
  study.holds<world<>>("one is stopped, another may die", 3, 1, one, of<world<>>(3, 1, true, 3u));
  study.is_caught<world<slip::does_not_wait>>("decides before all have asked", one,
                                              of<world<slip::does_not_wait>>(2, 1, false, 0u));
  study.is_caught<world<slip::looks_once_before>>("no look at the ranks that died during the renewal", one,
                                                  of<world<slip::looks_once_before>>(3, 1, false, 7u));
  study.is_caught<world<slip::keeps_the_list>>("begins again with the old list", one,
                                               of<world<slip::keeps_the_list>>(3, 1, false, 7u));
  study.is_caught<world<slip::counts_who_left>>("takes along a rank that has left", one,
                                                of<world<slip::counts_who_left>>(3, 1, false, 7u));
  study.is_harmless<world<slip::looks_once_after>>("no look before the renewal",
                                                   "The look after it finds the same ranks; a renewal is made in vain.",
                                                   one, of<world<slip::looks_once_after>>(3, 1, false, 7u));
  study.sum_up();
}
