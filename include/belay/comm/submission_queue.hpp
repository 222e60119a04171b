// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The protocol between one thread that submits operations to a ring and one that runs them in order. Operations are
// numbered from 1; the slot of one belongs to the submitting thread until it is launched, then to the running thread
// until it is completed.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "belay/comm/event_count.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {

/// A template for the model checker, which gives it atomics and a kernel of its own.
template <atomics_policy Atomics = std_atomics, class Kernel = futex<sharing::one_process>>
class submission_queue {
 public:
  /// The submitting thread: the number of the next operation to be launched.
  [[nodiscard]] std::uint64_t next() const noexcept { return launched_.load(std::memory_order_relaxed) + 1; }
  /// Its slot, written before, is the running thread's from now on.
  void launch(std::uint64_t number) noexcept {
    launched_.store(number, std::memory_order_seq_cst);
    queued_.notify_sleepers();
  }
  [[nodiscard]] bool completed(std::uint64_t number) const noexcept {
    return is_completed(number, std::memory_order_acquire);
  }
  /// Whether an operation is launched and not completed; the number of the last one that is.
  [[nodiscard]] bool waits() const noexcept { return launched_.load(std::memory_order_acquire) > last_completed(); }
  [[nodiscard]] std::uint64_t last_completed() const noexcept { return completed_.load(std::memory_order_acquire); }
  /// Returns when it is completed: its slot is the submitting thread's again.
  void wait(std::uint64_t number, spin_policy before_sleep) noexcept {
    (void)belay::wait_until(
        over_, before_sleep, [&](std::memory_order order) { return is_completed(number, order); },
        [] { return false; });
  }
  /// Returns when operation `number` is completed, and at `deadline` at the latest: false where that has passed before.
  [[nodiscard]] bool wait_until(std::uint64_t number, spin_policy before_sleep,
                                std::chrono::steady_clock::time_point deadline) noexcept {
    return belay::wait_until(
        over_, before_sleep, [&](std::memory_order order) { return is_completed(number, order); },
        [&] { return std::chrono::steady_clock::now() >= deadline; });
  }
  /// No more will be launched: the running thread completes what is there and ends.
  void end() noexcept {
    ending_.store(1, std::memory_order_release);
    queued_.notify_all();
  }

  /// The running thread: the number of the next operation in order, once it is launched; 0: none will be.
  [[nodiscard]] std::uint64_t await(spin_policy before_sleep) noexcept {
    const std::uint64_t number = completed_.load(std::memory_order_relaxed) + 1;
    const auto launched = [&](std::memory_order order) { return launched_.load(order) >= number; };
    for (int i = before_sleep.spins; i > 0 && !launched(std::memory_order_acquire); --i) Atomics::relax();
    while (!launched(std::memory_order_acquire)) {
      const std::uint32_t key = queued_.key();
      if (launched(std::memory_order_acquire)) break;
      if (ending_.load(std::memory_order_acquire) != 0) return launched(std::memory_order_acquire) ? number : 0;
      queued_.wait_unless(launched, key, 0);
    }
    return number;
  }
  void complete(std::uint64_t number) noexcept {
    completed_.store(number, std::memory_order_seq_cst);
    over_.notify_sleepers();
  }

 private:
  [[nodiscard]] bool is_completed(std::uint64_t number, std::memory_order order) const noexcept {
    return completed_.load(order) >= number;
  }

  alignas(64) typename Atomics::template atomic<std::uint64_t> launched_{0};
  typename Atomics::template atomic<std::uint32_t> ending_{0};
  event_count<sharing::one_process, Atomics, Kernel> queued_;
  alignas(64) typename Atomics::template atomic<std::uint64_t> completed_{0};
  event_count<sharing::one_process, Atomics, Kernel> over_;
};

}  // namespace belay::inline BELAY_ABI
