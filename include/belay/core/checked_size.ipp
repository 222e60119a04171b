// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The error of a size that no memory holds.
#pragma once

#include "belay/core/checked_size.hpp"

namespace belay::inline BELAY_ABI {

[[gnu::cold]] BELAY_DECL size_error::size_error(const std::string& what, where at)
    : usage_error(what + " more than any memory holds", at) {}

}  // namespace belay::inline BELAY_ABI
