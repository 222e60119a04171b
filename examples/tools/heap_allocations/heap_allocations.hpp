// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counts every `operator new` and `malloc` of the process, so that a trainer and tests can show whether a step has
// allocated.
#pragma once

#include <cstdint>

namespace tools {

/// Heap allocations of the process so far, of all threads and libraries.
[[nodiscard]] std::uint64_t heap_allocations() noexcept;

/// Whether they are counted at all: under a sanitizer, which has a malloc of its own, the number stays 0.
[[nodiscard]] bool heap_is_counted() noexcept;

}  // namespace tools
