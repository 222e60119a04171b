// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that a peer does not see can be copied once, by the kernel, or twice, through memory that both see. The kernel
// looks up every page and copies in its own way, so which is faster is found by timing both on this machine.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "belay/backend/host/algorithm.hpp"
#include "belay/backend/host/reach.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Microseconds of either way for the same bytes, the best of a few; `single` is negative where the kernel refuses.
struct single_copy_times {
  double single = -1;
  double staged = 0;

  /// Between ranks staging also waits in every round, and one of its copies reads what another core wrote: as much again.
  [[nodiscard]] bool single_pays() const noexcept { return single >= 0 && single <= 2 * staged; }
};

/// Of copies of `bytes`, in blocks of 256 KiB where they are staged. Of 4 MiB some milliseconds, and 8 MiB while it lasts.
[[nodiscard]] inline single_copy_times time_single_copy(std::size_t bytes) {
  using clock = std::chrono::steady_clock;
  const std::size_t block = std::min(bytes, std::size_t{256} << 10);
  const auto memory = std::make_unique<std::byte[]>(2 * bytes + block);
  std::byte* const from = memory.get();
  std::byte* const to = from + bytes;
  std::byte* const between = to + bytes;
  std::fill(from, between, std::byte{1});
  single_copy_times out;
  const auto best_of = [](auto copy) {
    double best = -1;
    for (int round = 0; round < 5; ++round) {
      const clock::time_point before = clock::now();
      if (!copy()) return -1.0;
      const double us = std::chrono::duration<double, std::micro>(clock::now() - before).count();
      best = round == 0 ? us : std::min(best, us);
    }
    return best;
  };
  out.single = best_of([&] { return read_process(::getpid(), reinterpret_cast<std::uintptr_t>(from), to, bytes); });
  out.staged = best_of([&] {
    for (std::size_t i = 0; i < bytes; i += block) {
      fast_copy(between, from + i, block, bytes);
      fast_copy(to + i, between, block, bytes);
    }
    return true;
  });
  return out;
}

/// The verdict for copies of `bytes` on this machine. Small and large ones are timed once a process each, at the first
/// operation of that size on memory that peers do not see.
[[nodiscard]] inline bool single_copy_pays(std::size_t bytes) {
  constexpr std::size_t least_large = 128 * 1024;
  if (bytes < least_large) {
    static const bool pays = time_single_copy(least_kernel_copy).single_pays();
    return pays;
  }
  static const bool pays = time_single_copy(std::size_t{4} << 20).single_pays();
  return pays;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
