// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the kernel holds in memory for this process.
//
//   const std::size_t before = belay::resident_memory();   // bytes
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of this process that are in memory, shared pages included; 0 where /proc does not say. Ranks that are threads
/// share them. It allocates nothing.
[[nodiscard]] BELAY_DECL std::size_t resident_memory() noexcept;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/resident_memory.ipp"  // IWYU pragma: export
#endif
