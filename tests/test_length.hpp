// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How much of a long test runs: all of it in `tests/run --soak`, a sample under the sanitizers.
#pragma once

#include <cstdlib>

[[nodiscard]] inline bool only_a_sample() { return std::getenv("BELAY_TEST_SAMPLE") != nullptr; }
[[nodiscard]] inline bool is_soak() { return std::getenv("BELAY_TEST_SOAK") != nullptr; }
