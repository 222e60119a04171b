// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A word that threads, of one process or of several that share its memory, sleep on. Waiting spins for a moment,
// because a peer is usually about to arrive, and then sleeps on the futex, because it may need our core. The word
// is a bell and carries no state: whoever changes the state looks for sleepers and rings; whoever waits announces
// itself, looks at the state again and sleeps unless it rang. Both sides' looks are sequentially consistent, or change
// one word, so that at least one of them sees the other and no wake-up is lost.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {

/// Who may sleep on a word. The kernel keeps the sleepers of one process cheaper.
enum class sharing { one_process, several_processes };

/// The kernel's sleep on a word of four bytes.
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
  // (Out of the way of those who find nobody asleep.)
  [[gnu::cold, gnu::noinline]] static void call(std::atomic<std::uint32_t>& word, int what, std::uint32_t value,
                                                const timespec* slice) noexcept {
    ::syscall(SYS_futex, &word, what | flag, value, slice, nullptr, 0);
  }
};

template <sharing Sharing = sharing::one_process, class Atomics = std_atomics, class Kernel = futex<Sharing>>
class event_count {
 public:
  /// The bell's present count.
  [[nodiscard]] std::uint32_t key() const noexcept { return notifications_.load(std::memory_order_acquire); }

  /// Wakes all who sleep. Everything written before is seen by who waits.
  void notify_all() noexcept {
    notifications_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) Kernel::wake_all(notifications_);
  }

  /// The same for a caller that has just changed the state by a sequentially consistent store: no more than one load
  /// where nobody sleeps.
  void notify_sleepers() noexcept {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    wake();
  }
  /// The same for a caller that has just changed the state by a store that releases. Of this and the sleeper's
  /// announcement, which change one word, the later one sees the earlier: the store need not wait for those before it.
  void notify_after_release() noexcept {
    if (sleepers_.fetch_add(0, std::memory_order_release) != 0) wake();
  }

  /// Sleeps until the bell has rung since `heard`, or for `slice_ns` nanoseconds (0: until it rings); not at all when
  /// `done(order)`, asked once the sleeper is announced, says that there is nothing to wait for. May return early.
  template <class Done>
  void wait_unless(Done done, std::uint32_t key, long slice_ns) {
    const announcement mine(sleepers_);  // also where the look throws
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

/// Tells the core that this is a spin.
inline void relax() noexcept { std_atomics::relax(); }

/// A sleep is cut into slices of this length, so that a peer's death or a deadline is seen without a ring.
inline constexpr long wait_slice_ns = 50'000'000L;

/// How long a wait looks before it sleeps: `spins` looks, then `yields` more that give the core away in between.
struct spin_policy {
  int spins = 0;
  int yields = 0;
};

/// Returns when `done(order)`, which looks with that memory order: first in patience, then asleep on `bell`. Before
/// each sleep `interrupted()` is asked; when it says true, the wait ends with the last look.
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
