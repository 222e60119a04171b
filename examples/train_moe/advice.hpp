// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which single flag, given otherwise, would need less memory: for a plan that is refused. Each is rehearsed, so that
// its bytes, and whether it fits, are those of a run with it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "belay/device/tier.hpp"
#include "belay/train/launch.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

/// A flag as it would be given, what it does, and the options with it alone changed.
struct flag_change {
  std::string flag, effect;
  options changed;
};

/// Changes of a run's flags that need less in a tier, the least intrusive first. Some may not go with the other
/// flags: `check` says so.
[[nodiscard]] std::vector<flag_change> changes_for(belay::tier of, const options& run);

/// These as lines, without numbers.
[[nodiscard]] std::vector<std::string> advice(belay::tier of, const options& run);

/// The plan of a run with other options. May throw what a rehearsal throws.
using plan_with = std::function<belay::rehearsal_result(const options& changed)>;

/// These as lines with the bytes that the largest rank would need in the tier, rehearsed one after the other. Those
/// that fit all budgets come first; where none does the first line says so, and the next is the one that needs least.
/// A change that needs no less than `planned` does is left out, but --zero 3's other --gathers.
[[nodiscard]] std::vector<std::string> rehearsed_advice(belay::tier of, const options& run, const belay::plan& planned,
                                                        const plan_with& rehearse);

}  // namespace train_moe
