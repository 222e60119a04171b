// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A word that threads (or processes that share its memory) sleep on. Waiting spins for a moment, because a
// peer is usually about to arrive, and then sleeps on the futex, because it may share our core. The word is a
// bell and carries no state: whoever changes the state rings, whoever waits looks at the state again. This
// order (note the bell, look, sleep unless it rang) loses no wake-up.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Who may sleep on a word. The kernel keeps the sleepers of one process cheaper.
enum class sharing { one_process, several_processes };

template <sharing Sharing = sharing::one_process>
class wait_word {
 public:
  /// The bell's present count.
  [[nodiscard]] std::uint32_t heard() const noexcept { return rung_.load(std::memory_order_acquire); }

  /// Wakes all who sleep. Everything written before is seen by who waits.
  void ring() noexcept {
    rung_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) system(FUTEX_WAKE, INT_MAX, nullptr);
  }

  /// Sleeps until the bell has rung since `heard`, or for `slice_ns` nanoseconds (0: until it rings).
  /// May return early.
  void sleep(std::uint32_t heard, long slice_ns) noexcept {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (rung_.load(std::memory_order_seq_cst) == heard) {
      const timespec slice{slice_ns / 1'000'000'000L, slice_ns % 1'000'000'000L};
      system(FUTEX_WAIT, heard, slice_ns == 0 ? nullptr : &slice);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  static constexpr int flag = Sharing == sharing::one_process ? FUTEX_PRIVATE_FLAG : 0;

  void system(int what, std::uint32_t value, const timespec* slice) noexcept {
    ::syscall(SYS_futex, &rung_, what | flag, value, slice, nullptr, 0);
  }

  std::atomic<std::uint32_t> rung_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);

/// Tells the core that this is a spin.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

/// A sleep is cut into slices of this length, so that a peer's death or a deadline is seen without a ring.
inline constexpr long wait_slice_ns = 50'000'000L;

/// Returns when `done()`: after `spins` looks it sleeps on `bell`. Before each sleep `interrupted()` is asked;
/// when it says true, the wait ends with false.
template <sharing Sharing, class Done, class Interrupted>
[[nodiscard]] bool wait_until(wait_word<Sharing>& bell, int spins, Done done, Interrupted interrupted) {
  for (int i = 0; i < spins; ++i) {
    if (done()) return true;
    relax();
  }
  while (true) {
    const std::uint32_t heard = bell.heard();
    if (done()) return true;
    if (interrupted()) return done();
    bell.sleep(heard, wait_slice_ns);
  }
}

}  // namespace belay::inline BELAY_ABI
