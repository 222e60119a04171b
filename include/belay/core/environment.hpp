// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The process's environment, which Belay reads here and nowhere else.
//
//   const char* const name = belay::environment_variable("BELAY_ALGORITHM");  // null where it is not set
#pragma once

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The value of a variable, valid until the process changes its environment; null where it is not set.
[[nodiscard]] BELAY_DECL const char* environment_variable(const char* name) noexcept;

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/environment.ipp"  // IWYU pragma: export
#endif
