// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which streams a run has: those that a flag names, else by a rule that gives all its ranks the same.
#pragma once

#include <cstddef>
#include <string>

#include "belay/comm/launcher.hpp"
#include "belay/device/stream_policy.hpp"

namespace train_moe {

/// "adversarial:7" to a policy and its seed. Throws belay::input_error.
[[nodiscard]] belay::stream_choice parse_streams(const std::string& text);

struct stream_rule {
  belay::stream_policy policy;
  std::string why;  // "12 cores for 4 ranks, 3 a rank are enough"
};

/// A rank's host, compute and communication threads want a core each: `queued` where this machine's `cores` are as
/// many, else `immediate`. Ranks that may be on several machines cannot tell what the others have, and all must choose
/// alike: `immediate`.
[[nodiscard]] inline stream_rule streams_by_rule(std::size_t ranks, std::size_t cores,
                                                 const belay::launcher_environment& found) {
  using belay::stream_policy;
  if (found.size > 1 && found.local_size != found.size)
    return {stream_policy::immediate, "ranks may be on several machines"};
  constexpr std::size_t wanted = 3;
  const std::string here = std::to_string(cores) + (cores == 1 ? " core for " : " cores for ") + std::to_string(ranks) +
                           (ranks == 1 ? " rank, " : " ranks, ");
  if (cores >= wanted * ranks) return {stream_policy::queued, here + std::to_string(wanted) + " a rank are enough"};
  return {stream_policy::immediate, here + "fewer than " + std::to_string(wanted) + " a rank"};
}

}  // namespace train_moe
