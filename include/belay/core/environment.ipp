// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the environment is read.
#pragma once

#include <cstdlib>

#include "belay/core/environment.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL const char* environment_variable(const char* name) noexcept { return std::getenv(name); }

}  // namespace belay::inline BELAY_ABI
