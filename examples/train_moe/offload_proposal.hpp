// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which --offload would make a plan fit its budgets. It is proposed and never taken: the flag is the user's to give.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "belay/device/tier.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/plan.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

/// The order in which lower tiers fill.
inline constexpr belay::tier tiers_to_fill[] = {belay::tier::pinned, belay::tier::host, belay::tier::file};

struct offload_proposal {
  options given, proposed;                      // they differ in tiers, and in the folder of tier file
  belay::plan planned;                          // of what is proposed
  std::optional<belay::plan_shortage> missing;  // what it is still short of; nothing: it fits

  /// As a line: the flags and the bytes of each tier, that they are not needed, or what no --offload gives.
  [[nodiscard]] std::string text() const;
};

/// Fills pinned, host and file, in this order, with what is in a tier that is over its budget: optimizer state first,
/// then gradients, parameters and activations, until all fits. What moves must fit where it goes, and is rehearsed
/// there: `rehearse` makes the plan of a run with other options, and may throw what a rehearsal throws. Where nothing
/// is found so, one after the other goes to a file. Where `given` has no folder for tier file, that is the system's for
/// temporary files.
[[nodiscard]] offload_proposal propose_offload(
    const options& given, const belay::plan& planned,
    const std::function<belay::rehearsal_result(const options& changed)>& rehearse);

/// "4096 bytes (4.0 KiB)"
[[nodiscard]] std::string exact_bytes(std::size_t bytes);

}  // namespace train_moe
