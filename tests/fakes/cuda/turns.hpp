// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The interleaving of ranks that are threads, from a seed. One of them goes on at a time, from its turn to its next
// call of a fake, or until it waits for its peers or its communication thread (fakes/cuda/turned_ranks.hpp): it needs
// another turn to go on from there, as a thread does that begins. A turn is given when all threads of the process
// sleep, whoever sleeps where, and wakes the thread alone that gets it. So ranks may share plain data without a lock.
// That they sleep is known where the one that has run since has only come to its next call.
//
//   fakes::turns turns(seed);
//   fakes::device_api api({.order = fakes::work_order::late, .turns = &turns});
//   belay::cuda::world world(api, fakes::in_turns(turns, belay::host::world(3)));
//   world.run(body);
//   turns.order();  // is that of the next run with the seed
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/cuda/draws.hpp"

namespace fakes {

/// Whether all threads of the process but the caller sleep, until another wakes them. Who sleeps for a time goes on
/// alone, and counts as one that runs. Threads that are there when this is made are a sanitizer's, and do not count.
class sleeping_threads {
 public:
  sleeping_threads() {
    std::thread([] {}).join();  // with the first thread comes that of ThreadSanitizer
    each_other([this](long thread) { return others_.insert(thread).second; });
  }
  /// Two looks at the same: no thread has run from the end of the first to the beginning of the second.
  [[nodiscard]] bool all() const {
    const std::optional<look> first = take();
    if (!first || first != take()) return false;
    return std::none_of(first->begin(), first->end(), [](const auto& each) { return naps(each.first); });
  }

 private:
  using look = std::map<long, std::string>;  // how often each thread has run

  // While `f(thread)` of the threads beside the caller is true; whether it was for all.
  template <class F>
  static bool each_other(const F& f) {
    const long self = ::syscall(SYS_gettid);
    DIR* const folder = ::opendir("/proc/self/task");
    bool held = folder != nullptr;
    for (const dirent* each = held ? ::readdir(folder) : nullptr; held && each != nullptr; each = ::readdir(folder)) {
      const long thread = std::strtol(each->d_name, nullptr, 10);
      if (thread > 0 && thread != self) held = f(thread);
    }
    if (folder != nullptr) ::closedir(folder);
    return held;
  }
  [[nodiscard]] std::optional<look> take() const {
    look out;
    const bool asleep = each_other([&](long thread) { return others_.count(thread) > 0 || add(thread, out); });
    return asleep ? std::optional(std::move(out)) : std::nullopt;
  }
  // Empty where it ends.
  static std::string told(long thread, const char* what) {
    const int file = ::open(("/proc/self/task/" + std::to_string(thread) + what).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return {};
    std::array<char, 4096> text;
    const ssize_t bytes = ::read(file, text.data(), text.size());
    ::close(file);
    return {text.data(), bytes < 0 ? 0 : static_cast<std::size_t>(bytes)};
  }
  static bool naps(long thread) {
    const long call = std::strtol(told(thread, "/syscall").c_str(), nullptr, 10);
    return call == SYS_nanosleep || call == SYS_clock_nanosleep;
  }
  static bool add(long thread, look& to) {
    const std::string all = told(thread, "/status");
    const std::size_t state = all.find("State:\t"), switches = all.find("voluntary_ctxt_switches");
    if (state == all.npos || switches == all.npos || all[state + 7] != 'S') return false;
    to.emplace(thread, all.substr(switches));
    return true;
  }

  std::set<long> others_;
};

class turns {
 public:
  /// The caller: a rank, or its communication thread.
  struct caller {
    int rank = 0;
    bool beside = false;
    auto operator<=>(const caller&) const = default;
  };

  /// By the thread that is to start the ranks, before it does.
  explicit turns(std::uint64_t seed) : draw_(seed) {}
  turns(const turns&) = delete;
  turns& operator=(const turns&) = delete;

  /// Before the ranks of a run are there. The first turn is given when all have entered.
  void begin(int ranks) {
    const std::lock_guard lock(mutex_);
    awaited_ = ranks;
    callers_.clear();
  }
  /// The calling thread is a rank while this lives, and begins in a turn of its own.
  class member {
   public:
    member(turns& of, int rank) : of_(&of) {
      of.enter(rank);
      of.pass("begins");
    }
    member(const member&) = delete;
    member& operator=(const member&) = delete;
    ~member() { of_->leave(); }

   private:
    turns* of_;
  };

  /// The calling thread's caller; nobody's where it was never told.
  [[nodiscard]] std::optional<caller> me() {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    return found == callers_.end() ? std::nullopt : std::optional(found->second.who);
  }
  /// The calling thread works for that rank beside it, unless it is known.
  void work_for(const caller& whose) {
    const std::lock_guard lock(mutex_);
    callers_.try_emplace(std::this_thread::get_id(), known{{whose.rank, true}, whereabouts::runs});
  }
  /// The calling thread has begun, and awaits its first turn, or has ended, what it was started for.
  class work {
   public:
    work(turns& of, int rank) : of_(&of) {
      of.work_for({rank, true});
      of.pass("begins");
    }
    work(const work&) = delete;
    work& operator=(const work&) = delete;
    ~work() { of_->rest(); }

   private:
    turns* of_;
  };
  /// The calling thread starts another, or what wakes it.
  void note_started() {
    const std::lock_guard lock(mutex_);
    unsettle();
  }
  /// Returns in the calling thread's turn; at once in one that is nobody's.
  void pass(std::string_view call) {
    std::unique_lock lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    if (found == callers_.end()) return;
    known& mine = found->second;
    waiter self{std::string(call)};
    if (looker_ == nullptr) looker_ = &self;
    waiting_[mine.who].push_back(&self);
    mine.now = whereabouts::passes;
    if (settled()) give_turn();
    while (!self.has_turn) {
      if (looker_ != &self) {
        self.changed.wait(lock);
      } else if (!unsettled_ && self.changed.wait_for(lock, patience) == std::cv_status::no_timeout) {
        continue;
      } else if (!self.has_turn && look(lock) && !self.has_turn) {  // one that came meanwhile may have given it
        unsettled_ = false;
        give_turn();
      }
    }
    mine.now = whereabouts::runs;
    if (looker_ == &self) let_another_look();
  }
  /// The calling thread is about to wait for what other ranks do; it needs a turn afterwards.
  void note(std::string_view call) {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    if (found == callers_.end()) return;
    add(found->second.who, call);
    found->second.now = whereabouts::waits;
    unsettle();
  }
  /// Called where that for which a thread waits has not come: others have their turns first.
  void let_others() {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    if (found != callers_.end()) patient_.insert(found->second.who);
  }
  /// Callers and their calls, in order.
  [[nodiscard]] const std::vector<std::string>& order() const noexcept { return order_; }

 private:
  enum class whereabouts : std::uint8_t { runs, passes, waits };
  struct known {
    caller who;
    whereabouts now;
  };
  // A thread in `pass`.
  struct waiter {
    std::string call;
    std::condition_variable changed = {};
    bool has_turn = false;
  };
  // So long a thread has its turn before it is looked whether it sleeps in a place that is not noted.
  static constexpr std::chrono::milliseconds patience{2};

  void enter(int rank) {
    const std::lock_guard lock(mutex_);
    callers_.insert_or_assign(std::this_thread::get_id(), known{{rank, false}, whereabouts::runs});
    --awaited_;
    unsettle();
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    callers_.erase(std::this_thread::get_id());
    unsettle();
  }
  void rest() {
    const std::lock_guard lock(mutex_);
    callers_.find(std::this_thread::get_id())->second.now = whereabouts::waits;
    unsettle();
  }
  // Others than the one that has its turn may run.
  void unsettle() {
    unsettled_ = true;
    if (looker_ != nullptr) looker_->changed.notify_one();
  }
  [[nodiscard]] bool settled() const {
    return !unsettled_ && awaited_ == 0 && std::none_of(callers_.begin(), callers_.end(), [](const auto& each) {
      return each.second.now == whereabouts::runs;
    });
  }
  // Whether all sleep.
  [[nodiscard]] bool look(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const bool still = threads_.all();
    if (!still) ::sched_yield();
    lock.lock();
    return still && awaited_ == 0;
  }
  void add(const caller& who, std::string_view call) {
    order_.push_back(std::to_string(who.rank) + (who.beside ? "' " : " ") + std::string(call));
  }
  void give_turn() {
    std::vector<caller> able;
    for (const auto& [who, threads] : waiting_)
      if (patient_.count(who) == 0) able.push_back(who);
    if (able.empty())
      for (const auto& [who, threads] : waiting_) able.push_back(who);
    patient_.clear();
    const auto next = waiting_.find(able[draw_(able.size())]);
    waiter& first = *next->second.front();  // of several threads beside a rank
    add(next->first, first.call);
    next->second.pop_front();
    if (next->second.empty()) waiting_.erase(next);
    first.has_turn = true;
    first.changed.notify_one();
  }
  void let_another_look() {
    looker_ = waiting_.empty() ? nullptr : waiting_.begin()->second.front();
    if (looker_ != nullptr) looker_->changed.notify_one();
  }

  sleeping_threads threads_;
  std::mutex mutex_;
  draws draw_;
  int awaited_ = 0;           // ranks that have not entered
  bool unsettled_ = true;     // since it was last seen that all sleep
  waiter* looker_ = nullptr;  // that of those in `pass` which looks
  std::map<std::thread::id, known> callers_;
  std::map<caller, std::deque<waiter*>> waiting_;
  std::set<caller> patient_;
  std::vector<std::string> order_;
};

}  // namespace fakes
