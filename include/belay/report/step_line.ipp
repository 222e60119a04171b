// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The two lines of a step.
#pragma once

#include "belay/core/finite.hpp"
#include "belay/report/step_line.hpp"
#include "belay/train/plan_table.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string_view step_line::human(const step_report& report) {
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

BELAY_DECL std::string_view step_line::json(const step_report& report) {
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

BELAY_DECL double step_line::imbalance(view<const std::uint64_t, 2> tokens) noexcept {
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

BELAY_DECL text_buffer& step_line::put_mebibytes(text_buffer& line, std::span<const std::uint64_t> ranks) noexcept {
  std::uint64_t largest = 0;
  for (std::uint64_t bytes : ranks) {
    if (bytes > largest) largest = bytes;
  }
  const std::uint64_t tenths = tenths_of(largest, std::uint64_t{1} << 20U);
  return line.put(tenths / 10).put('.').put(tenths % 10);
}

BELAY_DECL void step_line::tier(text_buffer& line, std::string_view name, const tier_report& report) noexcept {
  put_mebibytes(line.put("  ").put(name).put(' '), report.live);
  put_mebibytes(line.put('/'), report.peak);
  put_mebibytes(line.put('/'), report.planned).put(" MiB");
}

BELAY_DECL void step_line::bytes(json_line& line, std::string_view key, const step_report& report,
                                 std::span<const std::uint64_t> tier_report::* what) {
  line.open_object(key).array("device", report.device.*what);
  if (report.pinned.used()) line.array("pinned", report.pinned.*what);
  line.array("host", report.host.*what);
  if (report.file.used()) line.array("file", report.file.*what);
  line.close();
}

}  // namespace belay::inline BELAY_ABI
