// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A barrier that can be broken off. Whether a round was completed is decided by one word: either all ranks
// arrived before somebody gave up, and then everybody goes on, or not, and then nobody does. Without that a
// rank could give up and free its buffers while the others, who saw it arrive, read them.
#pragma once

#include <atomic>
#include <cstdint>

#include "belay/comm/wait_word.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Rounds count from 1; `target` is round x ranks. One call of `arrive` per rank and round.
class gate {
 public:
  enum class verdict { complete, incomplete, broken };

  /// Arrives; `complete` when everybody has.
  [[nodiscard]] verdict arrive(std::uint64_t round, std::uint64_t target) noexcept {
    std::uint64_t count = arrived_.load(std::memory_order_relaxed);
    do {
      if ((count & broken_bit) != 0) return verdict::broken;
    } while (!arrived_.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel, std::memory_order_relaxed));
    if (count + 1 != target) return verdict::incomplete;
    complete_.store(round, std::memory_order_release);
    bell_.ring();
    return verdict::complete;
  }

  [[nodiscard]] bool complete(std::uint64_t round) const noexcept {
    return complete_.load(std::memory_order_acquire) >= round;
  }

  /// Gives up for everybody who has not passed; `complete` when it was too late for that.
  [[nodiscard]] verdict break_off(std::uint64_t target) noexcept {
    const std::uint64_t count = arrived_.fetch_or(broken_bit, std::memory_order_acq_rel) & ~broken_bit;
    return count >= target ? verdict::complete : verdict::broken;
  }

  [[nodiscard]] wait_word<>& bell() noexcept { return bell_; }

 private:
  static constexpr std::uint64_t broken_bit = 1ULL << 63;

  alignas(64) std::atomic<std::uint64_t> arrived_{0};
  alignas(64) std::atomic<std::uint64_t> complete_{0};
  wait_word<> bell_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
