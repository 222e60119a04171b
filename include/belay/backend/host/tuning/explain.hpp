// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Lines that `BELAY_TUNING=print` writes to standard error: the variants that a group has settled for when it ends.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <string>

#include "belay/backend/host/tuning/online_tuner.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether BELAY_TUNING is `print`. Throws input_error for any other text.
[[nodiscard]] BELAY_DECL bool prints_tuning();

/// A line for each kind of call that is settled: the variant and every variant's microseconds. Empty where none is.
[[nodiscard]] BELAY_DECL std::string settled_text(const online_tuner& tuner, int ranks);

/// Where BELAY_TUNING is `print`. Never throws: what cannot be printed is not.
BELAY_DECL void print_settled(const online_tuner& tuner, int ranks) noexcept;

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/tuning/explain.ipp"  // IWYU pragma: export
#endif
