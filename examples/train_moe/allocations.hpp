// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counts every `operator new` and `malloc` of the process, so that "nothing is allocated in the steady state" is a
// number in every line the trainer prints.
#pragma once

#include <cstdint>

namespace train_moe {

/// Heap allocations of the process so far, of all threads and libraries.
[[nodiscard]] std::uint64_t heap_allocations() noexcept;

}  // namespace train_moe
