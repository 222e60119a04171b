// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream that runs beside its caller: one thread, a fixed ring of small closures, and events that order streams among
// each other as on a device. Queueing allocates nothing; a full ring makes the caller wait instead of growing.
//
//   belay::queue_stream copies, compute;
//   copies.run([=] { std::memcpy(to, from, bytes); });
//   compute.wait(copies.record());  // what is queued from here on begins after the copy
//   compute.run([=] { use(to); });
//   compute.synchronize();
#pragma once

#include <array>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/device/stream.hpp"

namespace belay::inline BELAY_ABI {

class queue_stream {
  // What an event and its stream share: how many pieces of work are over. Outlives both.
  struct progress {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t done = 0;

    void wait_for(std::uint64_t count) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return done >= count; });
    }
  };

 public:
  static constexpr bool runs_nothing = false;
  static constexpr std::size_t capacity = 256;      // pieces of work queued at most; one more waits
  static constexpr std::size_t closure_room = 128;  // bytes of a piece of work

  /// A place in a stream's order: reached when all work queued before it is over. A plain handle that may outlive
  /// its stream.
  class event {
   public:
    event() = default;  // reached from the start
    [[nodiscard]] bool ready() const {
      if (!of_) return true;
      const std::lock_guard lock(of_->mutex);
      return of_->done >= count_;
    }
    /// Returns when it is reached.
    void synchronize() const {
      if (of_) of_->wait_for(count_);
    }

   private:
    friend class queue_stream;
    event(std::shared_ptr<progress> of, std::uint64_t count) noexcept : of_(std::move(of)), count_(count) {}
    std::shared_ptr<progress> of_;
    std::uint64_t count_ = 0;
  };

  queue_stream() : progress_(std::make_shared<progress>()), thread_([this] { serve(); }) {}
  queue_stream(const queue_stream&) = delete;  // a stream is one thread
  queue_stream& operator=(const queue_stream&) = delete;
  /// Runs what is queued, then ends the thread. An exception that nobody fetched by `synchronize` is dropped.
  ~queue_stream();

  /// Queues `work()`: small and trivially copyable, because it is kept by value until it has run. What it points to
  /// lives until then. After a piece of work has thrown, later ones are skipped until `synchronize`.
  template <std::invocable Work>
  void run(const Work& work) {
    static_assert(
        std::is_trivially_copyable_v<Work> && sizeof(Work) <= closure_room,
        "belay: work for an asynchronous stream is kept by value: capture pointers and sizes, at most 128 bytes");
    if constexpr (std::is_trivially_copyable_v<Work> && sizeof(Work) <= closure_room) {
      queue([&](closure& slot) {
        ::new (static_cast<void*>(slot.storage)) Work(work);
        slot.call = [](closure& self) { (*std::launder(reinterpret_cast<Work*>(self.storage)))(); };
      });
    }
  }

  /// Marks the present end of the queue.
  [[nodiscard]] event record() {
    const std::lock_guard lock(progress_->mutex);
    return {progress_, queued_};
  }

  /// Work queued from here on begins after `mark` is reached. An event of a stream that itself waits for this place
  /// never is.
  void wait(const event& mark) {
    if (!mark.of_ || mark.of_ == progress_) return;  // this stream's own order already says so
    queue([&](closure& slot) {
      slot.mark = mark;  // keeps the other stream's progress alive until the place is passed
      slot.call = [](closure& self) { std::exchange(self.mark, event{}).synchronize(); };
    });
  }

  /// Returns when all queued work is over; rethrows the first exception of it.
  void synchronize();

 private:
  struct closure {
    alignas(std::max_align_t) std::byte storage[closure_room];
    void (*call)(closure&) = nullptr;
    event mark;  // of another stream, where the work is to wait for it
  };

  template <class Fill>
  void queue(Fill fill) {
    {
      std::unique_lock lock(progress_->mutex);
      progress_->changed.wait(lock, [&] { return queued_ - progress_->done < capacity; });
      fill(ring_[queued_ % capacity]);
      ++queued_;
    }
    progress_->changed.notify_all();
  }

  void serve();

  std::shared_ptr<progress> progress_;
  std::array<closure, capacity> ring_;
  std::uint64_t queued_ = 0;
  std::exception_ptr failure_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

static_assert(stream<queue_stream>);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/device/queue_stream.ipp"  // IWYU pragma: export
#endif
