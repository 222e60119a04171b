// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A set of processor cores, one bit each, in plain words that processes can share.
//
//   const belay::core_set cores = belay::core_set::allowed();
//   if (cores.count() < ranks) std::puts("fewer cores than ranks");
#pragma once

#include <sched.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The first 1024 cores of a machine.
struct core_set {
  /// One bit a core.
  static constexpr std::size_t words = 16;
  std::uint64_t bits[words] = {};

  /// Cores in the set.
  [[nodiscard]] int count() const noexcept {
    int out = 0;
    for (const std::uint64_t word : bits) out += std::popcount(word);
    return out;
  }
  /// The cores on which the calling thread may run.
  [[nodiscard]] static core_set allowed() noexcept {
    core_set out;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_SET(0, &cores);
    for (std::size_t core = 0; core < CPU_SETSIZE && core < 64 * words; ++core) {
      if (CPU_ISSET(core, &cores)) out.bits[core / 64] |= std::uint64_t{1} << (core % 64);
    }
    return out;
  }
};

}  // namespace belay::inline BELAY_ABI
