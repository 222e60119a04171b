// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// When queued work runs: at once, beside the host, or late on purpose.
//
//   belay::launch(belay::host::world{2}, train, {.streams = {belay::stream_policy::adversarial, 7}});
#pragma once

#include <cstdint>
#include <memory>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

class stream_arbiter;
class stream_watch;

/// `immediate`: the host runs work itself when it is given. `queued`: each stream has a thread. `adversarial`: a
/// `stream_arbiter` runs one piece of work of one stream of one rank at a time, when all hosts wait: whatever lacks an
/// event reads what is not there yet. `rehearsal`: work is not run, and memory may be addresses without pages.
enum class stream_policy : std::uint8_t { immediate, queued, adversarial, rehearsal };

/// The name, as `--streams` has it: "immediate", "queued", "adversarial".
[[nodiscard]] constexpr const char* name(stream_policy which) noexcept {
  switch (which) {
    case stream_policy::immediate: return "immediate";
    case stream_policy::queued: return "queued";
    case stream_policy::adversarial: return "adversarial";
    case stream_policy::rehearsal: return "rehearsal";
  }
  return "unknown";
}

/// A program's choice of when queued work runs. `seed` is that of `adversarial`.
struct stream_choice {
  /// The policy, and the seed of the adversarial one.
  stream_policy policy = stream_policy::immediate;
  std::uint64_t seed = 0;
};

/// How the streams of one rank run. Only `adversarial` has an arbiter, shared by all ranks. Only `queued` looks at
/// `watch`, which is the rank's own: elsewhere the host runs the work itself.
struct stream_settings {
  /// The policy, with what its streams share: who chooses the next one, and how long work may run.
  stream_policy policy = stream_policy::immediate;
  std::shared_ptr<stream_arbiter> arbiter = {};
  std::shared_ptr<const stream_watch> watch = {};
};

}  // namespace belay::inline BELAY_ABI
