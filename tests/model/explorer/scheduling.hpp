// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which modelled thread goes on, when an execution is over, and what a store adds to its word.
#pragma once

#include "model/explorer/execution.hpp"

namespace model {

// The current thread stands before an operation, or cannot or need not go on: which thread is next?
inline void execution::next_thread(bool gives_way) {
  if (decisions.fresh() && !states.enter(state_hash(gives_way), static_cast<std::uint8_t>(deviations_))) {
    how_ = ended::pruned;
    return abandon();
  }
  std::array<int, 2 * most_threads> options;
  int count = 0;
  const bool goes_on = current_ != none && !gives_way;
  if (goes_on) options[at(count++)] = current_;
  if (!goes_on || deviations_ < bound || decisions.by_chance()) {
    for (int k = 1; k <= cast_.threads; ++k) {
      const int q = current_ == none ? k - 1 : (current_ + k) % cast_.threads;
      if (q == current_ && goes_on) continue;
      if (can_run(threads_[at(q)])) options[at(count++)] = q;
    }
  }
  if (count == 0) return finish();
  // A waiting thread may die as well; a running one does when it is scheduled.
  for (int q = 0; q < cast_.threads && may_die_; ++q) {
    const epoch_view how = threads_[at(q)].state;
    const bool now =
        q == current_ ? goes_on : how == epoch_view::asleep || (how == epoch_view::waiting && current_ != none);
    if (now && (cast_.mortals >> q & 1) != 0) options[at(count++)] = most_threads + q;
  }
  const int chosen = options[at(count > 1 ? decisions.choose(count) : 0)];
  if (chosen >= most_threads) return die(chosen - most_threads, gives_way);
  if (goes_on && chosen != current_) ++deviations_;
  if (threads_[at(chosen)].state == epoch_view::waiting) threads_[at(chosen)].state = epoch_view::ready;
  if (chosen == current_) return;
  fakes::fiber& left = current_ == none ? main_ : stacks_[at(current_)];
  current_ = chosen;
  stacks_[at(chosen)].resume(left);
}

inline void execution::finish() {
  for (int q = 0; q < cast_.threads; ++q) {
    const epoch_view how = threads_[at(q)].state;
    if (how == epoch_view::over || how == epoch_view::dead || (cast_.daemons >> q & 1) != 0) continue;
    std::string who;
    for (int k = 0; k < cast_.threads; ++k) {
      if (threads_[at(k)].state == epoch_view::asleep) who += " " + std::to_string(k) + " (asleep)";
      if (threads_[at(k)].state == epoch_view::waiting) who += " " + std::to_string(k) + " (waiting)";
    }
    return fail("deadlock: nobody wakes" + who);
  }
  abandon();
}

inline void execution::append(thread& me, int word, std::uint64_t bits, std::memory_order order,
                              const view& inherited) {
  auto& values = words_[at(word)];
  const std::size_t index = values.size();
  if (index > 250) return fail("too many values of one word");
  me.now.seen[at(word)] = static_cast<std::uint8_t>(index);
  value& fresh = values.emplace_back();
  fresh.bits = bits;
  fresh.known = inherited;
  if (releases(order)) fresh.known.join(me.now);
  fresh.known.seen[at(word)] = static_cast<std::uint8_t>(index);
  me.id = mix(me.id, bits);
  fresh.id = me.id;
  order_hash_ += mix(mix(static_cast<std::uint64_t>(word), index), fresh.id);
  if (order == std::memory_order_seq_cst) raise_sc(word, index);
}

inline bool execution::compare_exchange(int word, std::uint64_t& expected, std::uint64_t desired,
                                        std::memory_order order, std::memory_order failure,
                                        const std::source_location& from) {
  const mutant::mistake_kind how = approach(site::of(from, act::compare, order), order);
  const site missed = site::of(from, act::miss, failure);
  note(missed);
  if (mistake.how == mutant::mistake_kind::weaker && mistake.where == missed) failure = mistake.to;
  // It succeeds on the last value only; any value that is not the expected one may make it fail.
  thread& me = threads_[at(current_)];
  auto& values = words_[at(word)];
  const std::size_t newest = values.size() - 1;
  std::array<std::size_t, 256> possible;
  int count = 0;
  if (values[newest].bits == expected) possible[static_cast<std::size_t>(count++)] = newest;
  const std::size_t floor = floor_of(word, failure);
  for (std::size_t i = newest + 1; i-- > floor;) {
    if (values[i].bits != expected) possible[static_cast<std::size_t>(count++)] = i;
  }
  const bool may_deviate = deviations_ < bound || decisions.by_chance();
  const std::size_t chosen = possible[static_cast<std::size_t>(count > 1 && may_deviate ? decisions.choose(count) : 0)];
  deviations_ += chosen != possible[0];
  if (values[chosen].bits == expected) {
    if (how != mutant::mistake_kind::omitted)
      (void)do_exchange(
          word, [&](std::uint64_t) { return desired; }, order);
    finish_late();
    return true;
  }
  read(me, word, chosen, failure);
  expected = values[chosen].bits;
  finish_late();
  return false;
}

inline void execution::finish_late() {
  thread& me = threads_[at(current_)];
  if (!me.late.any) return;
  me.late.any = false;
  next_thread(false);
  const auto late = me.late;
  if (late.adds) {
    (void)do_exchange(
        late.word, [&](std::uint64_t old) { return old + late.bits; }, late.order);
  } else {
    do_store(late.word, late.bits, late.order);
  }
}

inline void execution::die(int who, bool gives_way) {
  thread& one = threads_[at(who)];
  may_die_ = false;
  one.id = mix(one.id, 4711);
  if (one.death != none) append(one, one.death, 1, std::memory_order_seq_cst, view{});
  one.state = epoch_view::dead;
  next_thread(gives_way || who == current_);
}

}  // namespace model
