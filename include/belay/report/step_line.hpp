// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A step as one line: for people who watch, and for programs that compare. The memory for both is allocated once, for
// the largest line that is possible, so that printing a step allocates nothing.
//
//   belay::step_line line(ranks, layers, experts);
//   belay::step_report report;
//   report.loss = 2.31;
//   terminal.write(line.human(report));  // step 0  loss 2.3100  ...
//   log.write(line.json(report));        // {"step":0,"loss":2.31,...}
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of one tier, with an entry for each rank; without entries the run does not use the tier.
struct tier_report {
  std::span<const std::uint64_t> live;     // leased now
  std::span<const std::uint64_t> peak;     // the most that was leased so far
  std::span<const std::uint64_t> planned;  // the peak according to the plan

  /// Whether anything of the tier was given.
  [[nodiscard]] bool used() const noexcept { return !live.empty() || !peak.empty() || !planned.empty(); }
};

/// Allocations of all ranks since the end of the first step.
struct allocation_report {
  /// Of the device, of the host, and of the heap.
  std::uint64_t device = 0;
  std::uint64_t host = 0;
  std::uint64_t heap = 0;
};

/// The content of one line. It points to the caller's memory.
struct step_report {
  std::uint64_t step = 0;  // from 1
  double loss = 0;         // nats a token
  /// The values of one step, as the fields of the JSON line have them.
  double aux_loss = 0;
  double grad_norm = 0;  // before clipping
  std::uint64_t tokens = 0;
  double tokens_per_s = 0;
  tier_report device;  // device and host are in every line, the others where they are used
  tier_report pinned;
  tier_report host;
  tier_report file;
  allocation_report allocations;
  std::uint64_t open_obligations = 0;
  double bubble = 0;                           // share of the pipeline phase, 0 to 1, mean over ranks; NaN: not known
  double bubble_predicted = 0;                 // the same, predicted from the schedule
  view<const std::uint64_t, 2> expert_tokens;  // [layer][expert], over all ranks
  bool replayed = false;
  std::uint64_t plan_misses = 0;          // gathers of layers that were not as planned, of all ranks
  std::uint64_t prefetch_hits = 0;        // those that had been started when the layer asked
  std::uint64_t gathered_bytes_peak = 0;  // of the rank with most: parameters that were whole at a time
  std::uint64_t offloaded_pinned = 0;     // of the rank with most: bytes that live in that tier, not in device
  std::uint64_t offloaded_host = 0;
  std::uint64_t offloaded_file = 0;
  double hidden_copy_share = 0;  // of the copies between tiers: time that nothing waited for; 0 without any
  const char* phase = "train";
};

/// Formats step_reports of up to the given sizes.
class step_line {
 public:
  /// Room for a line of so many ranks, layers and experts, taken once.
  step_line(std::size_t ranks, std::size_t layers, std::size_t experts)
      : room_(2048 + digits * (3 * tiers * ranks + layers * (experts + 1)), ' ') {}

  /// The line for people, with its newline. Valid until the next call. Bytes are the maximum over ranks.
  [[nodiscard]] std::string_view human(const step_report& report);

  /// The line for programs: one JSON object with its newline. Valid until the next call.
  [[nodiscard]] std::string_view json(const step_report& report);

  /// Tokens of the busiest expert of any layer divided by the mean of its layer: 1 is perfect balance.
  [[nodiscard]] static double imbalance(view<const std::uint64_t, 2> tokens) noexcept;

 private:
  static constexpr std::size_t digits = 24;  // of a number and its separator
  static constexpr std::size_t tiers = 4;    // device, pinned, host, file

  [[nodiscard]] std::span<char> room() noexcept { return {room_.data(), room_.size()}; }

  // Of the rank that has most.
  static text_buffer& put_mebibytes(text_buffer& line, std::span<const std::uint64_t> ranks) noexcept;

  static void tier(text_buffer& line, std::string_view name, const tier_report& report) noexcept;

  static void bytes(json_line& line, std::string_view key, const step_report& report,
                    std::span<const std::uint64_t> tier_report::* what);

  std::string room_;  // of both lines
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/report/step_line.ipp"  // IWYU pragma: export
#endif
