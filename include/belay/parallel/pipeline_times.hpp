// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where the time of a rank's pipeline phase went.
// IWYU pragma: private, include "belay/parallel/pipeline.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {

/// How a rank's compute stream has spent its time in one pipeline phase, in seconds. Known once the step has ended; of
/// the stream of a device, where that was traced (`pipeline::take_times_of_device`).
struct pipeline_times {
  /// Seconds in forwards and backwards.
  double forward = 0;
  double backward = 0;
  double waiting = 0;  // for exchanges
  double phase = 0;    // first action to last; 0: nothing is known

  /// Whether the stream has told: where not, all are 0.
  [[nodiscard]] bool known() const noexcept { return phase > 0; }
  /// Adds an action's seconds; the share of a step that the rank waited.
  void add(schedule::action_kind what, bool exchanged, double seconds) noexcept {
    (exchanged ? waiting : what == schedule::action_kind::forward ? forward : backward) += seconds;
    phase += seconds;
  }
  [[nodiscard]] double bubble() const noexcept { return phase > 0 ? waiting / phase : 0; }
};

/// An action of a rank's row, and when its compute stream ran it, in nanoseconds of the clock. Known once the step has
/// ended, and as `pipeline_times` where that is the stream of a device.
struct executed_action {
  /// The action, its micro-batch, and when it began and ended, in nanoseconds of the monotonic clock; 0: not known.
  schedule::action_kind kind = schedule::action_kind::forward;
  std::size_t micro_batch = 0;
  bool exchanged = false;  // tensors with neighbours: what the stream did was wait
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Times of a phase whose actions have these spans, which go to `actions` too. Unknown where one has none, or is not
/// over: 0. What lies between two actions is part of the phase.
[[nodiscard]] inline pipeline_times times_of_spans(std::span<const traced_span* const> spans,
                                                   std::span<executed_action> actions) noexcept {
  pipeline_times out;
  const auto is_over = [](const traced_span* each) { return each != nullptr && each->over(); };
  const bool known = std::all_of(spans.begin(), spans.end(), is_over);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    executed_action& done = actions[i];
    done.begin = done.end = 0;
    if (!known) continue;
    done.begin = spans[i]->begin, done.end = spans[i]->end;
    out.add(done.kind, done.exchanged, 1e-9 * static_cast<double>(done.end - done.begin));
  }
  if (known && !spans.empty()) out.phase = 1e-9 * static_cast<double>(actions[spans.size() - 1].end - actions[0].begin);
  return out;
}

}  // namespace belay::inline BELAY_ABI
