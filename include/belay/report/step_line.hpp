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
#include "belay/core/finite.hpp"
#include "belay/core/view.hpp"
#include "belay/report/json_line.hpp"
#include "belay/report/text_buffer.hpp"
#include "belay/train/plan_table.hpp"

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
  [[nodiscard]] std::string_view human(const step_report& report) {
    text_buffer line(room());
    line.put("step ").put(report.step);
    line.put("  loss ").put_fixed(report.loss, 4);
    line.put("  ").put_fixed(report.tokens_per_s, 0).put(" tok/s  |g| ").put_fixed(report.grad_norm, 3);
    tier(line, "device", report.device);
    if (report.pinned.used()) tier(line, "pinned", report.pinned);
    tier(line, "host", report.host);
    if (report.file.used()) tier(line, "file", report.file);
    line.put("  allocs ");
    line.put(report.allocations.device + report.allocations.host + report.allocations.heap);
    line.put("  open ").put(report.open_obligations);
    line.put("  experts ").put_fixed(imbalance(report.expert_tokens), 2);
    if (!is_nan(report.bubble)) {
      line.put("  bubble ").put_fixed(100 * report.bubble, 1).put('/');
      line.put_fixed(100 * report.bubble_predicted, 1).put('%');
    }
    if (report.replayed) line.put("  replayed");
    line.put('\n');
    return line.text();
  }

  /// The line for programs: one JSON object with its newline. Valid until the next call.
  [[nodiscard]] std::string_view json(const step_report& report) {
    json_line line(room());
    line.field("step", report.step).field("loss", report.loss).field("aux_loss", report.aux_loss);
    line.field("grad_norm", report.grad_norm).field("tokens", report.tokens);
    line.field("tokens_per_s", report.tokens_per_s);
    bytes(line, "live_bytes", report, &tier_report::live);
    bytes(line, "peak_bytes", report, &tier_report::peak);
    bytes(line, "planned_bytes", report, &tier_report::planned);
    line.open_object("allocations").field("device", report.allocations.device);
    line.field("host", report.allocations.host).field("heap", report.allocations.heap).close();
    line.field("open_obligations", report.open_obligations);
    if (!is_nan(report.bubble)) line.field("bubble", report.bubble).field("bubble_predicted", report.bubble_predicted);
    line.field("plan_misses", report.plan_misses).field("prefetch_hits", report.prefetch_hits);
    line.field("gathered_bytes_peak", report.gathered_bytes_peak).field("phase", report.phase);
    line.open_object("offloaded_bytes").field("pinned", report.offloaded_pinned);
    line.field("host", report.offloaded_host)
        .field("file", report.offloaded_file)
        .close()
        .field("hidden_copy_share", report.hidden_copy_share);
    line.open_array("expert_tokens");
    for (std::size_t layer = 0; layer < report.expert_tokens.extent(0); ++layer) {
      line.row(std::span<const std::uint64_t>(report.expert_tokens[layer].flat()));
    }
    line.close().field("replayed", report.replayed);
    return line.finish();
  }

  /// Tokens of the busiest expert of any layer divided by the mean of its layer: 1 is perfect balance.
  [[nodiscard]] static double imbalance(view<const std::uint64_t, 2> tokens) noexcept {
    double worst = 0;
    for (std::size_t layer = 0; layer < tokens.extent(0); ++layer) {
      std::uint64_t largest = 0;
      std::uint64_t total = 0;
      for (std::size_t expert = 0; expert < tokens.extent(1); ++expert) {
        const std::uint64_t here = tokens(layer, expert);
        if (here > largest) largest = here;
        total += here;
      }
      if (total == 0) continue;
      const double mean = static_cast<double>(total) / static_cast<double>(tokens.extent(1));
      const double ratio = static_cast<double>(largest) / mean;
      if (ratio > worst) worst = ratio;
    }
    return worst;
  }

 private:
  static constexpr std::size_t digits = 24;  // of a number and its separator
  static constexpr std::size_t tiers = 4;    // device, pinned, host, file

  [[nodiscard]] std::span<char> room() noexcept { return {room_.data(), room_.size()}; }

  // Of the rank that has most.
  static text_buffer& put_mebibytes(text_buffer& line, std::span<const std::uint64_t> ranks) noexcept {
    std::uint64_t largest = 0;
    for (std::uint64_t bytes : ranks) {
      if (bytes > largest) largest = bytes;
    }
    const std::uint64_t tenths = tenths_of(largest, std::uint64_t{1} << 20U);
    return line.put(tenths / 10).put('.').put(tenths % 10);
  }

  static void tier(text_buffer& line, std::string_view name, const tier_report& report) noexcept {
    put_mebibytes(line.put("  ").put(name).put(' '), report.live);
    put_mebibytes(line.put('/'), report.peak);
    put_mebibytes(line.put('/'), report.planned).put(" MiB");
  }

  static void bytes(json_line& line, std::string_view key, const step_report& report,
                    std::span<const std::uint64_t> tier_report::*what) {
    line.open_object(key).array("device", report.device.*what);
    if (report.pinned.used()) line.array("pinned", report.pinned.*what);
    line.array("host", report.host.*what);
    if (report.file.used()) line.array("file", report.file.*what);
    line.close();
  }

  std::string room_;  // of both lines
};

}  // namespace belay::inline BELAY_ABI
