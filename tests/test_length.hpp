// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How much of a long test runs: all of it in `tests/run --soak`, a sample under the sanitizers.
#pragma once

#include <cstdlib>

[[nodiscard]] inline bool only_a_sample() { return std::getenv("BELAY_TEST_SAMPLE") != nullptr; }
[[nodiscard]] inline bool is_soak() { return std::getenv("BELAY_TEST_SOAK") != nullptr; }

/// Whether the program has a thread of ThreadSanitizer's: one that has does not fork ranks.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool threads_are_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool threads_are_sanitized = true;
#else
inline constexpr bool threads_are_sanitized = false;
#endif
#else
inline constexpr bool threads_are_sanitized = false;
#endif
