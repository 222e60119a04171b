// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The numbers of a step as scalars of an event: their tags are the names of the JSON line (report/step_line.hpp), those
// inside an object as paths.
//
//   belay::event_file events("runs/first");
//   belay::add_scalars(events, report);
//   events.write(report.step);
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/report/event_file.hpp"
#include "belay/report/step_line.hpp"

namespace belay::inline BELAY_ABI {

/// Adds them to the event that `events` collects. Bytes are those of the rank with most, in the tiers that are used. Of
/// the experts' tokens it is the imbalance, `expert_imbalance`: the busiest expert of any layer over the mean of its
/// layer. Allocates nothing.
inline void add_scalars(event_file& events, const step_report& report) {
  const auto scalar = [&events](std::string_view tag, auto value) { events.scalar(tag, static_cast<double>(value)); };
  scalar("loss", report.loss), scalar("aux_loss", report.aux_loss), scalar("grad_norm", report.grad_norm);
  scalar("tokens", report.tokens), scalar("tokens_per_s", report.tokens_per_s);
  const auto largest = [](std::span<const std::uint64_t> ranks) {
    return ranks.empty() ? 0 : *std::max_element(ranks.begin(), ranks.end());
  };
  struct {
    const tier_report& bytes;
    std::string_view live, peak, planned;
  } const tiers[] = {{report.device, "live_bytes/device", "peak_bytes/device", "planned_bytes/device"},
                     {report.pinned, "live_bytes/pinned", "peak_bytes/pinned", "planned_bytes/pinned"},
                     {report.host, "live_bytes/host", "peak_bytes/host", "planned_bytes/host"},
                     {report.file, "live_bytes/file", "peak_bytes/file", "planned_bytes/file"}};
  for (const auto& tier : tiers) {
    if (!tier.bytes.used()) continue;
    scalar(tier.live, largest(tier.bytes.live)), scalar(tier.peak, largest(tier.bytes.peak));
    scalar(tier.planned, largest(tier.bytes.planned));
  }
  scalar("allocations/device", report.allocations.device), scalar("allocations/host", report.allocations.host);
  scalar("allocations/heap", report.allocations.heap), scalar("open_obligations", report.open_obligations);
  if (!is_nan(report.bubble)) scalar("bubble", report.bubble), scalar("bubble_predicted", report.bubble_predicted);
  scalar("plan_misses", report.plan_misses), scalar("prefetch_hits", report.prefetch_hits);
  scalar("gathered_bytes_peak", report.gathered_bytes_peak);
  scalar("offloaded_bytes/pinned", report.offloaded_pinned), scalar("offloaded_bytes/host", report.offloaded_host);
  scalar("offloaded_bytes/file", report.offloaded_file), scalar("hidden_copy_share", report.hidden_copy_share);
  scalar("expert_imbalance", step_line::imbalance(report.expert_tokens));
  scalar("replayed", report.replayed ? 1 : 0);
}

}  // namespace belay::inline BELAY_ABI
