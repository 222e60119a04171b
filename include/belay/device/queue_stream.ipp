// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The thread of a stream, or its turns.
#pragma once

#include <atomic>
#include <chrono>

#include "belay/device/queue_stream.hpp"
#include "belay/device/stream_arbiter.hpp"

namespace belay::inline BELAY_ABI {

// A wait for an event of another stream looks so often whether it was cancelled.
inline constexpr std::chrono::milliseconds queue_stream::slice{20};

// How many pieces of work are queued and over. Outlives the stream with its events.
class queue_stream::progress final : public event_source {
 public:
  explicit progress(std::shared_ptr<stream_arbiter> arbiter) noexcept : arbiter_(std::move(arbiter)) {}

  [[nodiscard]] bool over(std::uint64_t place) const noexcept override {
    return done_.load(std::memory_order_acquire) >= place;
  }
  [[nodiscard]] bool wait_until(std::uint64_t place, std::chrono::steady_clock::time_point deadline) const override {
    if (over(place)) return true;
    if (arbiter_ != nullptr) {
      arbiter_->wait([&] { return over(place); });
      return true;
    }
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return over(place); };
    if (deadline != std::chrono::steady_clock::time_point::max()) return changed_.wait_until(lock, deadline, is_over);
    changed_.wait(lock, is_over);
    return true;
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
  std::shared_ptr<stream_arbiter> arbiter_;
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
    return all.cancelled() || all.failed() || owner_->ring_[all.done() % capacity].mark.ready();
  }
  void run_next() noexcept override { owner_->run_slot(owner_->progress_->done() + 1); }

 private:
  queue_stream* owner_;
};

BELAY_DECL queue_stream::queue_stream()
    : progress_(std::make_shared<progress>(nullptr)),
      ring_(std::make_unique<closure[]>(capacity)),
      thread_([this] { serve(); }) {}

BELAY_DECL queue_stream::queue_stream(std::shared_ptr<stream_arbiter> arbiter, int rank, stream_kind kind)
    : progress_(std::make_shared<progress>(std::move(arbiter))),
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
  progress_->end(ending_);
  thread_.join();
}

BELAY_DECL queue_stream::closure& queue_stream::next_slot() {
  // The place of the oldest: it is over before its slot is written.
  if (queued_ >= capacity)
    static_cast<void>(progress_->wait_until(queued_ + 1 - capacity, std::chrono::steady_clock::time_point::max()));
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
  slot.call = [](closure& self) {
    const stream_event place = std::exchange(self.mark, {});
    while (!self.of->cancelled() &&
           !place.synchronize_until(std::chrono::steady_clock::now() + slice, self.waited_at)) {
    }
  };
  slot.of = progress_.get();
  submit();
}

BELAY_DECL void queue_stream::cancel() noexcept {
  progress_->cancel();
  wait_until_idle();
  progress_->resume();
}

BELAY_DECL void queue_stream::wait_until_idle() const noexcept {
  static_cast<void>(progress_->wait_until(queued_, std::chrono::steady_clock::time_point::max()));
}

BELAY_DECL void queue_stream::synchronize() {
  wait_until_idle();
  if (const std::exception_ptr failure = progress_->take_failure()) std::rethrow_exception(failure);
}

BELAY_DECL void queue_stream::run_slot(std::uint64_t number) noexcept {
  closure& slot = ring_[(number - 1) % capacity];
  std::exception_ptr thrown;
  if (progress_->failed() || progress_->cancelled()) {
    slot.mark = {};
  } else {
    try {
      slot.call(slot);
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  progress_->complete(number, std::move(thrown));
}

BELAY_DECL void queue_stream::serve() {
  for (std::uint64_t next = 1; progress_->await(next, ending_); ++next) run_slot(next);
}

}  // namespace belay::inline BELAY_ABI
