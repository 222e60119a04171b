// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The communicators of a rank. The parent, of all ranks, is made without blocking, so that its making has a deadline,
// and carries nothing; its children share its resources, and their calls block. The two kinds are never in one group
// of calls: NCCL leaves that undefined.
//
// Making and destroying are collective, aborting is not. So what ends communicators in order is a call, and the
// destructor aborts what is left. The first that a rank's communication has failed of is kept for all later calls of
// the rank, and told to its control world, whose calls fail by it on all ranks.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// The first that a rank's communication over NCCL has failed of. Of any thread.
class rank_failure {
 public:
  explicit rank_failure(std::shared_ptr<const stream_watch> watch) noexcept : watch_(std::move(watch)) {}

  [[nodiscard]] const stream_watch& watch() const noexcept { return *watch_; }
  [[nodiscard]] const std::shared_ptr<const stream_watch>& shared_watch() const noexcept { return watch_; }

  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// A call of NCCL or of the device has failed. The first that is noted stays.
  void note(const backend_error& problem) {
    keep([&] { problem_ = problem.about(); });
    tell(error_kind::backend, problem.what(), problem.at());
  }
  /// An operation has not ended in time. `what` names the rank, the operation and its site.
  void note_timeout(const std::string& what, where at) {
    keep([&] { cause_ = abort_cause{comm_fault::timeout, {watch_->rank()}, what, at.text()}; });
    tell(error_kind::communication, what, at);
  }
  /// The control world has failed: its cause is this rank's.
  void note_world() {
    keep([] {});
  }

  /// Throws the first cause, as an error of `call`; what has failed of a call of NCCL stays the error of that.
  [[noreturn]] void raise(const call_site& call) const {
    std::optional<backend_error::details> problem;
    std::optional<abort_cause> cause;
    {
      const std::lock_guard lock(mutex_);
      problem = problem_;
      cause = cause_;
    }
    if (problem) {
      if (problem->here.line == 0) problem->here = call.at;  // of no operation
      throw backend_error(std::move(*problem));
    }
    if (cause) raise_cause(std::move(*cause), call, 0);
    watch_->raise(call.at);
    std::terminate();  // not reached
  }

 private:
  template <class Keep>
  void keep(const Keep& first) {
    const std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    first();
    failed_.store(true, std::memory_order_release);
  }
  void tell(error_kind thrown, const std::string& what, where at) const { watch_->fail(thrown, what, at); }

  std::shared_ptr<const stream_watch> watch_;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::optional<backend_error::details> problem_;
  std::optional<abort_cause> cause_;
};

/// The rank's host thread makes and uses them; any thread asks what they have met, and aborts. The library and the
/// failure outlive it.
template <nccl_api N>
class communicators {
 public:
  using handle = typename N::communicator_type;

  communicators(const library<N>& lib, rank_failure& failure) noexcept : lib_(&lib), failure_(&failure) {}
  communicators(const communicators&) = delete;
  communicators& operator=(const communicators&) = delete;
  ~communicators() { abort(); }

  /// Makes the parent; collective over all ranks. Throws backend_error, and comm_error where that takes longer than the
  /// world waits for peers.
  void init(int ranks, const unique_id& id, where at) {
    const auto turn = enter();
    const auto got = api().init(parent_, ranks, id, lib_->rank(), calls::non_blocking);
    expect(got, "init", at);
    settle(parent_, "init", at);
    made_.store(true, std::memory_order_release);
  }
  /// Makes a child of the ranks that give the same colour, ordered by key; collective over all ranks, of which those
  /// with a negative colour get none. The child stays in its place.
  [[nodiscard]] handle split(int colour, int key, where at) {
    const auto turn = enter_alive(at);
    child& slot = [this]() -> child& {
      const std::lock_guard lock(list_);
      return children_.emplace_back();
    }();
    at_work_ = true;
    expect(api().split(parent_, colour, key, slot.made, calls::blocking), "split", at);
    settle(parent_, "split", at);
    at_work_ = false;
    if (colour < 0) return {};
    settle(slot.made, "split", at);
    const std::lock_guard lock(list_);
    slot.usable = true;
    return slot.made;
  }

  /// The first that one of them has met, if any. The parent, which does not block, is left out while a call is under
  /// way, and after one that threw: that asks it itself, and two threads would both end what it does. By a thread that
  /// has no turn.
  [[nodiscard]] std::optional<backend_error> met() const {
    if (!made_.load(std::memory_order_acquire)) return {};
    const std::unique_lock turn(calls_, std::try_to_lock);
    const std::lock_guard lock(list_);
    if (over_) return {};
    if (turn.owns_lock() && !at_work_)
      if (auto problem = met(parent_)) return problem;
    for (const child& each : children_)
      if (each.usable)
        if (auto problem = met(each.made)) return problem;
    return {};
  }

  /// Whether they have not been ended or aborted.
  [[nodiscard]] bool alive() const {
    const std::lock_guard lock(list_);
    return !over_;
  }

  /// While it lives this thread alone calls NCCL, but for what any thread may call.
  [[nodiscard]] std::unique_lock<std::mutex> enter() { return std::unique_lock(calls_); }

  /// While it lives this thread alone calls NCCL, but for what any thread may call. Throws the rank's first cause where
  /// it has failed: communicators are aborted then, or will be.
  [[nodiscard]] std::unique_lock<std::mutex> enter_alive(where at) {
    std::unique_lock turn = enter();
    if (failure_->failed()) failure_->raise({operation::none, 0, 0, 0, at});
    return turn;
  }

  /// From here on nothing is aborted, while a capture is under way; and again. True: somebody wanted to.
  void hold_aborts() noexcept {
    const std::lock_guard lock(list_);
    held_ = true;
  }
  [[nodiscard]] bool let_aborts() noexcept {
    const std::lock_guard lock(list_);
    held_ = false;
    return std::exchange(wanted_, false);
  }

  /// Ends all of them, what they have queued and the calls of others. A call that does not return is aborted in.
  void abort() noexcept {
    if (aborts_later()) return;
    std::unique_lock turn(calls_, std::try_to_lock);
    for (int tries = 0; !turn.owns_lock() && tries < most_tries; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(turn.try_lock());
    }
    const std::lock_guard lock(list_);
    if (over_ || held_ || parent_ == handle{}) {
      wanted_ = wanted_ || held_;
      return;
    }
    over_ = true;
    for (auto each = children_.rbegin(); each != children_.rend(); ++each)
      if (each->usable) lib_->note(api().abort(each->made), "abort");
    lib_->note(api().abort(parent_), "abort");
    for (const child& each : children_)  // what the parent was making
      if (!each.usable && each.made != handle{}) lib_->note(api().abort(each.made), "abort");
  }
  /// Ends them in order, children first; collective over all ranks, which have nothing queued. Throws backend_error.
  void destroy(where at) {
    const auto turn = enter();
    const std::lock_guard lock(list_);
    if (over_ || parent_ == handle{}) return;
    over_ = true;
    std::optional<backend_error> first;
    const auto end = [&](handle on) {
      const auto got = api().destroy(on);
      if (!api().succeeded(got) && !first) first = lib_->error_of(got, "destroy", 0, at);
    };
    for (auto each = children_.rbegin(); each != children_.rend(); ++each)
      if (each->usable) end(each->made);
    end(parent_);
    if (first) throw *first;
  }

 private:
  struct child {
    handle made{};
    bool usable = false;
  };

  [[nodiscard]] N& api() const noexcept { return lib_->api(); }
  [[nodiscard]] bool aborts_later() noexcept {
    const std::lock_guard lock(list_);
    wanted_ = wanted_ || held_;
    return held_;
  }

  void expect(const typename N::status_type& got, const char* call, where at) const {
    if (!api().in_progress(got)) lib_->expect(got, call, 0, at);
  }
  [[nodiscard]] std::optional<backend_error> met(handle on) const {
    typename N::status_type told{};
    const auto got = api().async_error(on, told);
    if (!api().succeeded(got)) return lib_->error_of(got, "async_error", 0, {});
    if (api().succeeded(told) || api().in_progress(told)) return {};
    return lib_->error_of(told, "asynchronous error", 0, {});
  }

  // Returns when `on` has succeeded with what it does: not before may any event be recorded behind it.
  void settle(const handle& on, const char* call, where at) {
    const stream_watch& watch = failure_->watch();
    const auto begun = watch.now();
    for (int asked = 0;; ++asked) {
      typename N::status_type told{};
      lib_->expect(api().async_error(on, told), "async_error", 0, at);
      if (api().succeeded(told)) return;
      if (!api().in_progress(told)) throw lib_->error_of(told, call, 0, at);
      if (watch.failed()) watch.raise(at);
      if (watch.now() - begun >= watch.limit())
        watch.give_up("rank " + std::to_string(lib_->rank()) + ": NCCL's " + call +
                          " has not ended in time: not all ranks of the world have called it",
                      at);
      if (asked < busy)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  static constexpr int busy = 100;        // asked at once so often, then seldom
  static constexpr int most_tries = 200;  // a millisecond each

  const library<N>* lib_;
  rank_failure* failure_;
  handle parent_{};
  std::atomic<bool> made_{false};
  mutable std::mutex calls_;
  bool at_work_ = false;  // the parent, with a child; by who has the turn
  mutable std::mutex list_;
  std::deque<child> children_;
  bool over_ = false;
  bool held_ = false, wanted_ = false;  // aborts; by whom a capture is under way
};

}  // namespace belay::inline BELAY_ABI::nccl
