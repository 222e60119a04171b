// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Signals by name: "SIGKILL (9)" says more than "signal 9", and the texts of strsignal depend on the locale.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <string>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// "SIGKILL (9)", or "signal 40" for one without a name here.
[[nodiscard]] BELAY_DECL std::string signal_name(int number);

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/signal_name.ipp"  // IWYU pragma: export
#endif
