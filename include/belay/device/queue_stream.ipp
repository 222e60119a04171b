// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The thread of a stream, or its turns. Whoever waits for a stream looks every slice whether it gets on.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/device/queue_stream.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_watch.hpp"

namespace belay::inline BELAY_ABI {

// How many pieces of work are queued and over. Outlives the stream with its events.
class queue_stream::progress final : public event_source {
 public:
  progress(stream_kind kind, std::shared_ptr<stream_arbiter> arbiter,
           std::shared_ptr<const stream_watch> watch) noexcept
      : kind_(kind), arbiter_(std::move(arbiter)), watch_(std::move(watch)) {}

  [[nodiscard]] bool over(std::uint64_t place) const noexcept override {
    return done_.load(std::memory_order_acquire) >= place;
  }
  [[nodiscard]] bool wait_until(std::uint64_t place, std::chrono::steady_clock::time_point deadline,
                                where at) const override {
    if (over(place)) return true;
    if (arbiter_ != nullptr) {
      arbiter_->wait([&] { return over(place); });
      return true;
    }
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return over(place); };
    if (deadline != largest_value<std::chrono::steady_clock::time_point>)
      return changed_.wait_until(lock, deadline, is_over);
    if (watch_ == nullptr) {
      changed_.wait(lock, is_over);
      return true;
    }
    stream_patience mine(*watch_);
    while (!changed_.wait_for(lock, stream_patience::slice, is_over)) {
      lock.unlock();
      mine.expect_more([] { return std::string(); }, *this, at);
      lock.lock();
    }
    return true;
  }
  [[nodiscard]] stream_pace pace() const noexcept override {
    return {now_.load(std::memory_order_relaxed), done_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] stream_kind kind() const noexcept override { return kind_; }
  [[nodiscard]] std::string text() const override {
    const char* const signature = runs_.load(std::memory_order_relaxed);
    if (signature == nullptr || now_.load(std::memory_order_relaxed) == stream_pace::activity::waits) return name();
    // "... signature_of() [with Work = NAME]", without "with" where Clang says it
    std::string_view work = signature;
    const std::size_t begin = work.find("Work = ");
    if (begin != std::string_view::npos) work = work.substr(begin + 7, work.size() - begin - 8);
    return name() + ", which runs '" + std::string(work) + "' as its work " + std::to_string(done() + 1);
  }
  // The stream's thread: returns when `mark` is reached or the wait is cancelled; throws as the host's waits do.
  void await_event(const stream_event& mark, const where& at) {
    await_over(mark, at);
    if (mark.ready()) mark.synchronize(at);
  }
  // The stream's thread: returns when `mark` is passed, by work that is done or has failed, or the wait is cancelled.
  void await_over(const stream_event& mark, const where& at) {
    if (mark.ready()) return;
    now_.store(stream_pace::activity::waits, std::memory_order_relaxed);
    std::optional<stream_patience> mine;
    if (watch_ != nullptr) mine.emplace(*watch_);
    const event_source& source = *mark.source();
    const auto wait_a_slice = [&] {
      return source.wait_until(mark.place(), std::chrono::steady_clock::now() + stream_patience::slice, at);
    };
    while (!cancelled() && !wait_a_slice())
      if (mine) mine->expect_more([this] { return "'s " + name(); }, source, at);
  }
  // For those who may not throw: returns when `place` is over, and ends the program where the stream is stuck.
  void wait_or_end(std::uint64_t place) const noexcept {
    if (watch_ == nullptr || arbiter_ != nullptr)
      return static_cast<void>(wait_until(place, largest_value<std::chrono::steady_clock::time_point>, {}));
    std::unique_lock lock(mutex_);
    stream_patience mine(*watch_);
    while (!changed_.wait_for(lock, stream_patience::slice, [&] { return over(place); })) {
      lock.unlock();
      if (mine.look(pace()) == stream_patience::verdict::stuck) end_program();
      lock.lock();
    }
  }
  void begin(const char* signature) noexcept {
    now_.store(stream_pace::activity::works, std::memory_order_relaxed);
    runs_.store(signature, std::memory_order_relaxed);
  }
  void expect_done(std::uint64_t place, where) const override {
    const std::lock_guard lock(mutex_);
    if (failure_ && place > failed_after_) std::rethrow_exception(failure_);
  }
  void complete(std::uint64_t number, std::exception_ptr thrown) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (thrown && !failure_) {
        failure_ = std::move(thrown);
        failed_after_ = number - 1;
      }
      done_.store(number, std::memory_order_release);
    }
    changed_.notify_all();
  }
  [[nodiscard]] bool failed() const noexcept {
    const std::lock_guard lock(mutex_);
    return failure_ != nullptr;
  }
  void cancel() noexcept { cancelled_.store(true, std::memory_order_release); }
  void resume() noexcept { cancelled_.store(false, std::memory_order_release); }
  [[nodiscard]] bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }
  [[nodiscard]] std::exception_ptr take_failure() noexcept {
    const std::lock_guard lock(mutex_);
    return std::exchange(failure_, nullptr);
  }

  void queue() noexcept {
    {
      const std::lock_guard lock(mutex_);
      queued_.fetch_add(1, std::memory_order_release);
    }
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t queued() const noexcept { return queued_.load(std::memory_order_acquire); }
  [[nodiscard]] std::uint64_t done() const noexcept { return done_.load(std::memory_order_acquire); }
  // The thread of the stream: whether number `next` was queued, or nothing more will be.
  [[nodiscard]] bool await(std::uint64_t next, const bool& ending) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued() >= next || ending; });
    return queued() >= next;
  }
  void end(bool& ending) noexcept {
    {
      const std::lock_guard lock(mutex_);
      ending = true;
    }
    changed_.notify_all();
  }
  [[nodiscard]] const std::shared_ptr<stream_arbiter>& arbiter() const noexcept { return arbiter_; }

 private:
  [[nodiscard]] std::string name() const { return std::string(belay::name(kind_)) + " stream"; }
  [[noreturn]] void end_program() const noexcept {
    std::fprintf(stderr,
                 "belay: rank %d ends its program: what it has queued on its %s does not end, and its memory cannot be "
                 "freed before\n",
                 watch_->rank(), text().c_str());
    std::terminate();
  }

  stream_kind kind_;
  std::shared_ptr<stream_arbiter> arbiter_;
  std::shared_ptr<const stream_watch> watch_;
  std::atomic<stream_pace::activity> now_{stream_pace::activity::works};
  std::atomic<const char*> runs_{nullptr};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> queued_{0};
  std::exception_ptr failure_;
  std::uint64_t failed_after_ = 0;
  std::atomic<bool> cancelled_{false};
};

class queue_stream::turns final : public arbitrated {
 public:
  turns(queue_stream& owner, int rank, stream_kind kind) noexcept
      : arbitrated(rank, runner::waiting_host, kind), owner_(&owner) {}

  [[nodiscard]] bool can_run() const noexcept override {
    const progress& all = *owner_->progress_;
    if (all.done() == all.queued()) return false;
    if (all.cancelled() || all.failed()) return true;
    return owner_->ring_[all.done() % capacity].mark.ready() &&
           std::all_of(owner_->owed_.begin(), owner_->owed_.end(),
                       [](const owed_wait& each) { return each.mark.ready(); });
  }
  void run_next() noexcept override { owner_->run_slot(owner_->progress_->done() + 1); }

 private:
  queue_stream* owner_;
};

BELAY_DECL queue_stream::queue_stream(stream_kind kind, std::shared_ptr<const stream_watch> watch)
    : progress_(std::make_shared<progress>(kind, nullptr, std::move(watch))),
      ring_(std::make_unique<closure[]>(capacity)),
      thread_([this] { serve(); }) {}

BELAY_DECL queue_stream::queue_stream(std::shared_ptr<stream_arbiter> arbiter, int rank, stream_kind kind)
    : progress_(std::make_shared<progress>(kind, std::move(arbiter), nullptr)),
      ring_(std::make_unique<closure[]>(capacity)),
      turns_(std::make_unique<turns>(*this, rank, kind)) {
  progress_->arbiter()->add(*turns_);
}

BELAY_DECL queue_stream::~queue_stream() {
  if (turns_ != nullptr) {
    progress_->arbiter()->remove(*turns_);
    while (progress_->done() < queued_) run_slot(progress_->done() + 1);
    return;
  }
  progress_->wait_or_end(queued_);
  progress_->end(ending_);
  thread_.join();
}

BELAY_DECL queue_stream::closure& queue_stream::next_slot() {
  // The place of the oldest: it is over before its slot is written.
  if (queued_ >= capacity)
    static_cast<void>(
        progress_->wait_until(queued_ + 1 - capacity, largest_value<std::chrono::steady_clock::time_point>, {}));
  return ring_[queued_ % capacity];
}

BELAY_DECL void queue_stream::submit() {
  ++queued_;
  progress_->queue();
}

BELAY_DECL stream_event queue_stream::record() const { return {progress_, queued_}; }

BELAY_DECL void queue_stream::wait(const stream_event& mark, where at) {
  if (mark.source() == nullptr || mark.source() == progress_.get()) return;  // this stream's own order says so
  closure& slot = next_slot();
  slot.mark = mark;  // keeps the other stream's progress alive until the place is passed
  slot.waited_at = at;
  slot.call = [](closure& self) { self.of->await_event(self.mark, self.waited_at); };
  slot.signature = nullptr;
  slot.of = progress_.get();
  submit();
}

BELAY_DECL void queue_stream::cancel() noexcept {
  progress_->cancel();
  progress_->wait_or_end(queued_);
  progress_->resume();
}

BELAY_DECL void queue_stream::wait_until_idle(where at) const {
  static_cast<void>(progress_->wait_until(queued_, largest_value<std::chrono::steady_clock::time_point>, at));
}

BELAY_DECL void queue_stream::synchronize(where at) {
  wait_until_idle(at);
  if (const std::exception_ptr failure = progress_->take_failure()) std::rethrow_exception(failure);
}

BELAY_DECL void queue_stream::run_slot(std::uint64_t number) noexcept {
  closure& slot = ring_[(number - 1) % capacity];
  std::exception_ptr thrown;
  if (!progress_->failed() && !progress_->cancelled()) {
    try {
      if (await_owed()) {
        progress_->begin(slot.signature);
        slot.call(slot);
      }
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  owe(slot);
  progress_->complete(number, std::move(thrown));
}

// What comes after a wait may use memory that others still work on, also where the wait was skipped or cut short.
BELAY_DECL void queue_stream::owe(closure& passed) {
  if (passed.mark.ready()) return static_cast<void>(passed.mark = {});
  owed_wait own{std::exchange(passed.mark, {}), passed.waited_at};
  const auto of_source = [&](const owed_wait& other) { return other.mark.source() == own.mark.source(); };
  const auto found = std::find_if(owed_.begin(), owed_.end(), of_source);
  if (found == owed_.end())
    owed_.push_back(std::move(own));
  else if (found->mark.place() < own.mark.place())
    *found = std::move(own);
}
BELAY_DECL bool queue_stream::await_owed() {
  if (owed_.empty()) [[likely]]
    return true;
  for (const owed_wait& each : owed_) progress_->await_over(each.mark, each.at);
  std::erase_if(owed_, [](const owed_wait& each) { return each.mark.ready(); });
  return owed_.empty();
}

BELAY_DECL void queue_stream::serve() {
  for (std::uint64_t next = 1; progress_->await(next, ending_); ++next) run_slot(next);
}

}  // namespace belay::inline BELAY_ABI
