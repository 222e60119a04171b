// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An event count: what a thread sleeps on, of one process or of several that share its memory. A wait first spins,
// because a peer is usually about to arrive, and then sleeps on a futex, because the peer may need this core. The event
// count holds no state of its own. A notifier changes the state, then checks for sleepers and notifies. A waiter
// announces itself, checks the state again, and sleeps unless it was notified since. Both checks are sequentially
// consistent, or change one word, so at least one side sees the other and no wake-up is lost.
//
//   belay::event_count changed;                         // the waiter:
//   const bool done = belay::wait_until(changed, {.spins = 400},
//       [&](std::memory_order order) { return flag.load(order) != 0; }, [] { return false; });
//
//   flag.store(1, std::memory_order_seq_cst);           // the notifier:
//   changed.notify_sleepers();
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {

/// Which threads may sleep on a word. The kernel is faster where they are of one process.
enum class sharing { one_process, several_processes };

/// Sleep and wake-up of the kernel, on a word of four bytes.
template <sharing Sharing>
struct futex {
  /// Returns at once unless the word still holds `expected`; 0 nanoseconds: until it is woken. May return early.
  static void sleep(std::atomic<std::uint32_t>& word, std::uint32_t expected, long slice_ns) noexcept {
    const timespec slice{slice_ns / 1'000'000'000L, slice_ns % 1'000'000'000L};
    call(word, FUTEX_WAIT, expected, slice_ns == 0 ? nullptr : &slice);
  }
  static void wake_all(std::atomic<std::uint32_t>& word) noexcept { call(word, FUTEX_WAKE, INT_MAX, nullptr); }

 private:
  static constexpr int flag = Sharing == sharing::one_process ? FUTEX_PRIVATE_FLAG : 0;
  // Out of line: a notifier that finds no sleeper stays short.
  [[gnu::cold, gnu::noinline]] static void call(std::atomic<std::uint32_t>& word, int what, std::uint32_t value,
                                                const timespec* slice) noexcept {
    ::syscall(SYS_futex, &word, what | flag, value, slice, nullptr, 0);
  }
};

template <sharing Sharing = sharing::one_process, class Atomics = std_atomics, class Kernel = futex<Sharing>>
class event_count {
 public:
  /// To be read before the state is checked, and passed to `wait_unless`.
  [[nodiscard]] std::uint32_t key() const noexcept { return notifications_.load(std::memory_order_acquire); }

  /// Wakes all sleepers. They see everything written before.
  void notify_all() noexcept {
    notifications_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) Kernel::wake_all(notifications_);
  }

  /// Wakes all sleepers, for a caller that has just changed the state by a sequentially consistent store: one load
  /// where no thread sleeps.
  void notify_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    wake();
  }
  /// Wakes all sleepers, for a caller that has just changed the state by a release store. This read-modify-write and
  /// the sleeper's announcement change one word, so the later one sees the earlier: the store need not be sequentially
  /// consistent.
  void notify_after_release() noexcept {
    if (sleepers_.fetch_add(0, std::memory_order_release) != 0) wake();
  }

  /// Sleeps until a notification later than `key`, or for `slice_ns` nanoseconds (0: without limit); not at all when
  /// `done(order)`, asked once this sleeper is announced, is true. May return early.
  template <class Done>
  void wait_unless(Done done, std::uint32_t key, long slice_ns) {
    const announcement mine(sleepers_);  // also withdrawn where `done` throws
    if (!done(std::memory_order_seq_cst)) Kernel::sleep(notifications_, key, slice_ns);
  }
  void sleep(std::uint32_t key, long slice_ns) noexcept {
    wait_unless([&](std::memory_order order) { return notifications_.load(order) != key; }, key, slice_ns);
  }

 private:
  using word = typename Atomics::template atomic<std::uint32_t>;

  void wake() noexcept {
    notifications_.fetch_add(1, std::memory_order_seq_cst);
    Kernel::wake_all(notifications_);
  }

  class announcement {
   public:
    explicit announcement(word& sleepers) noexcept : sleepers_(&sleepers) {
      sleepers.fetch_add(1, std::memory_order_seq_cst);
    }
    announcement(const announcement&) = delete;
    announcement& operator=(const announcement&) = delete;
    ~announcement() { sleepers_->fetch_sub(1, std::memory_order_relaxed); }

   private:
    word* sleepers_;
  };

  typename Atomics::template atomic<std::uint32_t> notifications_{0};
  typename Atomics::template atomic<std::uint32_t> sleepers_{0};
};

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

/// Tells the core that this thread spins.
inline void relax() noexcept { std_atomics::relax(); }

/// A sleep is cut into slices of this length, so that a peer's death or a deadline is seen without a notification.
inline constexpr long wait_slice_ns = 50'000'000L;

/// How long to sleep for something that is waited for until `until`, a time by `clock`; 0: no longer. Without a clock
/// that is the machine's, by which the kernel sleeps. Any other may be there sooner: it is asked after each slice.
[[nodiscard]] inline std::chrono::nanoseconds time_to_sleep(time_source::time_point until,
                                                            const time_source* clock) noexcept {
  if (until <= time_source::time_point{}) return {};  // at once; and the difference to the least time would not fit
  const std::chrono::nanoseconds left = until - time_by(clock);
  if (left.count() <= 0) return {};
  return clock == nullptr ? left : std::chrono::nanoseconds(wait_slice_ns);
}

/// How long a wait polls before it sleeps: `spins` times, then `yields` times more with the core given away in between.
struct spin_policy {
  /// Rounds that spin before it sleeps, and how many of them give the core away.
  int spins = 0;
  int yields = 0;
};

/// Polls of a spin that take `time` on this machine: the pause instruction differs much between processors.
[[nodiscard, gnu::cold]] inline int spins_in(std::chrono::nanoseconds time) noexcept {
  using clock = std::chrono::steady_clock;
  constexpr int polls = 400;
  auto fastest = largest_value<std::chrono::nanoseconds>;
  for (int round = 0; round < 3; ++round) {  // the fastest round was not interrupted
    const auto before = clock::now();
    for (int i = 0; i < polls; ++i) relax();
    const auto after = clock::now();
    if (after - before < fastest) fastest = after - before;
  }
  const auto each = static_cast<double>(fastest.count() > 0 ? fastest.count() : 1) / polls;
  const double count = static_cast<double>(time.count()) / each;
  return count > 1e9 ? 1'000'000'000 : static_cast<int>(count) + 1;
}

/// Returns true when `done(order)`, which loads with that memory order, is true: polls by the spin policy first, then
/// sleeps on `doorbell`. Before each sleep `interrupted()` is asked; where it is true, the wait ends with a last poll.
template <sharing Sharing, class Atomics, class Kernel, class Done, class Interrupted>
[[nodiscard]] bool wait_until(event_count<Sharing, Atomics, Kernel>& doorbell, spin_policy before_sleep, Done done,
                              Interrupted interrupted) {
  for (int i = 0; i < before_sleep.spins; ++i) {
    if (done(std::memory_order_acquire)) return true;
    Atomics::relax();
  }
  for (int i = 0; i < before_sleep.yields; ++i) {
    if (done(std::memory_order_acquire)) return true;
    Atomics::yield();
  }
  while (true) {
    const std::uint32_t key = doorbell.key();
    if (done(std::memory_order_acquire)) return true;
    if (interrupted()) return done(std::memory_order_acquire);
    doorbell.wait_unless(done, key, wait_slice_ns);
  }
}

}  // namespace belay::inline BELAY_ABI
