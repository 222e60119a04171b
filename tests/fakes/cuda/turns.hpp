// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The interleaving of ranks that are threads, from a seed. Each call of a fake waits for its turn, and one turn is
// given at a time: when all threads of the process sleep, in a fake or where a rank waits for its peers or its
// communication thread. Then nothing will happen but by a turn, whoever sleeps where, so waits need no hook.
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
#include <compare>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
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
  /// Who calls: a rank, or its communication thread.
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
  /// The calling thread is a rank while this lives.
  class member {
   public:
    member(turns& of, int rank) : of_(&of) { of.enter(rank); }
    member(const member&) = delete;
    member& operator=(const member&) = delete;
    ~member() { of_->leave(); }

   private:
    turns* of_;
  };

  /// Who the calling thread is; nobody's where it was never told.
  [[nodiscard]] std::optional<caller> me() {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    return found == callers_.end() ? std::nullopt : std::optional(found->second);
  }
  /// The calling thread works for that rank beside it, unless it is known.
  void work_for(const caller& whose) {
    const std::lock_guard lock(mutex_);
    callers_.try_emplace(std::this_thread::get_id(), caller{whose.rank, true});
  }
  /// Returns in the calling thread's turn; at once in one that is nobody's.
  void pass(std::string_view call) {
    std::unique_lock lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    if (found == callers_.end()) return;
    const caller mine = found->second;
    while (!waiting_.emplace(mine, call).second) changed_.wait(lock);  // of two threads beside a rank one calls
    while (waiting_.count(mine) > 0) {
      if (looking_) {
        changed_.wait(lock);
        continue;
      }
      looking_ = true;
      lock.unlock();
      const bool still = threads_.all();
      if (!still) ::sched_yield();
      lock.lock();
      looking_ = false;
      if (still && awaited_ == 0) give_turn();
    }
    changed_.notify_all();  // another one looks
  }
  /// What the calling thread waits for has not come: others have their turns first.
  void let_others() {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(std::this_thread::get_id());
    if (found != callers_.end()) patient_.insert(found->second);
  }
  /// Who has called what.
  [[nodiscard]] const std::vector<std::string>& order() const noexcept { return order_; }

 private:
  void enter(int rank) {
    const std::lock_guard lock(mutex_);
    callers_[std::this_thread::get_id()] = {rank, false};
    --awaited_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    callers_.erase(std::this_thread::get_id());
  }
  void give_turn() {
    std::vector<caller> able;
    for (const auto& [who, call] : waiting_)
      if (patient_.count(who) == 0) able.push_back(who);
    if (able.empty())
      for (const auto& [who, call] : waiting_) able.push_back(who);
    patient_.clear();
    const auto next = waiting_.find(able[draw_(able.size())]);
    order_.push_back(std::to_string(next->first.rank) + (next->first.beside ? "' " : " ") + next->second);
    waiting_.erase(next);
    changed_.notify_all();
  }

  sleeping_threads threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  draws draw_;
  int awaited_ = 0;       // ranks that have not entered
  bool looking_ = false;  // one of those that wait
  std::map<std::thread::id, caller> callers_;
  std::map<caller, std::string> waiting_;
  std::set<caller> patient_;
  std::vector<std::string> order_;
};

/// A world of threads whose ranks are known to `turns`.
template <class Control>
class in_turns {
 public:
  static constexpr bool ranks_are_threads = true;
  in_turns(turns& by, Control control) : by_(&by), control_(std::move(control)) {}

  [[nodiscard]] int size() const { return control_.size(); }
  template <class Body>
  auto run(Body&& body) const {
    by_->begin(size());
    return control_.run([&](auto& rank) {
      const turns::member here(*by_, rank.number());
      return body(rank);
    });
  }

 private:
  turns* by_;
  Control control_;
};

}  // namespace fakes
