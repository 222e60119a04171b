// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How the benchmark's own waits poll: without a pause in a probe of the machine, with one elsewhere, and giving the
// core away where ranks outnumber cores. A rank that died ends them with an error instead of a hang.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>

namespace bench {

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

enum class variants { keep_core, give_core_away };

/// Polls until `done()`; throws after two minutes.
template <class Done>
void look_until(Done done, variants how) {
  using clock = std::chrono::steady_clock;
  clock::time_point limit{};
  for (std::uint64_t looks = 1; !done(); ++looks) {
    if (how == variants::keep_core)
      relax();
    else if (looks % 30 == 0)
      ::sched_yield();
    if (looks % (1U << 22) != 0) continue;
    if (limit == clock::time_point{}) limit = clock::now() + std::chrono::minutes(2);
    if (clock::now() > limit) throw std::runtime_error("a rank of the benchmark waited two minutes for another one");
  }
}

}  // namespace bench
