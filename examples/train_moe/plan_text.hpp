// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The plan as text: the table, and where it exceeds its budget what is missing and what to change.
#pragma once

#include <string>

#include "belay/train/plan.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

[[nodiscard]] std::string plan_text(const belay::plan& plan, const options& run);

/// Throws belay::plan_refused with the table.
[[noreturn]] void refuse(const belay::plan& plan, const belay::plan_shortage& shortage, const options& run);

}  // namespace train_moe
