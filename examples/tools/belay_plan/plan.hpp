// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A plan as it is shown: ranks that need the same, and what for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/device/tier.hpp"
#include "tools/belay_plan/choice.hpp"
#include "tools/belay_plan/memory.hpp"
#include "tools/belay_plan/step_time.hpp"

namespace belay_plan {

/// Where the bytes of a row are from.
enum class origin : std::uint8_t { rehearsal, formula, estimate };
[[nodiscard]] constexpr const char* name(origin of) noexcept {
  switch (of) {
    case origin::rehearsal: return "rehearsal";
    case origin::formula: return "formula";
    case origin::estimate: return "estimate";
  }
  return "unknown";
}

struct purpose_row {
  belay::tier where_it_is = belay::tier::device;
  std::string purpose;
  count bytes = 0;
  origin from = origin::rehearsal;

  [[nodiscard]] bool operator==(const purpose_row&) const = default;
};

/// Ranks `first` to `last`.
struct rank_range {
  int first = 0, last = 0;
};

/// Ranks at one place of the pipeline that need the same bytes.
struct rank_class {
  int stage = 0;  // the place along pp: the stage of the rank, or the first of several
  std::vector<rank_range> ranks;
  std::vector<purpose_row> rows;

  [[nodiscard]] count total(belay::tier in) const noexcept {
    count all = 0;
    for (const purpose_row& each : rows) all += each.where_it_is == in ? each.bytes : 0;
    return all;
  }
  [[nodiscard]] count bytes(belay::tier in, const std::string& of) const noexcept {
    count all = 0;
    for (const purpose_row& each : rows) all += each.where_it_is == in && each.purpose == of ? each.bytes : 0;
    return all;
  }
  [[nodiscard]] int size() const noexcept {
    int all = 0;
    for (const rank_range& each : ranks) all += each.last - each.first + 1;
    return all;
  }
};

/// The states of a rank by the formulas, beside each other.
struct stage_states {
  state_bytes store, paper;
  count buckets = 0;
};

struct plan_result {
  architecture model;
  setting run;
  std::string why_estimate;  // why it was not rehearsed; empty: it was
  std::size_t rehearsed_ranks = 0;
  std::vector<rank_class> classes;
  std::vector<stage_states> states;  // by place along pp
  time_constants constants;
  step_time time;
  bubble_share bubble;
  std::optional<chosen_schedule> choice;  // of --schedule auto

  [[nodiscard]] bool rehearsed() const noexcept { return why_estimate.empty(); }
  /// The class that needs most of a tier.
  [[nodiscard]] const rank_class& fullest(belay::tier in) const noexcept {
    const rank_class* most = &classes.front();
    for (const rank_class& each : classes)
      if (each.total(in) > most->total(in)) most = &each;
    return *most;
  }
  /// The tier in which it exceeds `limit` most.
  [[nodiscard]] std::optional<belay::tier> shortage(const belay::budget& limit) const noexcept {
    std::optional<belay::tier> worst;
    count most = 0;
    for (std::size_t t = 0; t < belay::tier_count; ++t) {
      const auto in = static_cast<belay::tier>(t);
      const count needed = fullest(in).total(in);
      if (needed <= limit[in] || needed - limit[in] <= most) continue;
      most = needed - limit[in];
      worst = in;
    }
    return worst;
  }
};

/// At most `most` classes, in the order of stages: the fullest of each stage before others, and fuller ones before less
/// full ones.
[[nodiscard]] inline std::vector<const rank_class*> chosen_classes(const plan_result& plan, std::size_t most) {
  struct choice {
    const rank_class* one;
    count device;
    std::size_t behind;  // fuller ones of its stage
  };
  std::vector<choice> all;
  for (const rank_class& each : plan.classes) all.push_back({&each, each.total(belay::tier::device), 0});
  std::sort(all.begin(), all.end(), [](const choice& a, const choice& b) {
    return a.device != b.device ? a.device > b.device : a.one < b.one;
  });
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t fuller = 0; fuller < i; ++fuller)
      all[i].behind += all[fuller].one->stage == all[i].one->stage ? 1U : 0U;
  std::sort(all.begin(), all.end(), [](const choice& a, const choice& b) {
    if ((a.behind == 0) != (b.behind == 0)) return a.behind == 0;
    return a.device != b.device ? a.device > b.device : a.one < b.one;
  });
  if (all.size() > most) all.resize(most);
  std::vector<const rank_class*> out;
  for (const choice& each : all) out.push_back(each.one);
  std::sort(out.begin(), out.end());  // as the plan has them
  return out;
}

/// "0-3, 8", of ranks in order; "0-3, ..." of more than `most` ranges.
[[nodiscard]] inline std::string ranks_text(const std::vector<rank_range>& ranks, std::size_t most = 4) {
  std::string out;
  std::size_t shown = 0;
  for (const rank_range& each : ranks) {
    if (++shown > most) return out + ", ...";
    out += (out.empty() ? "" : ", ") + std::to_string(each.first) +
           (each.last > each.first ? "-" + std::to_string(each.last) : "");
  }
  return out;
}

/// The ranks of each stage, by formulas.
[[nodiscard]] inline std::vector<rank_class> estimated_classes(const architecture& model, const setting& run) {
  std::vector<rank_class> all;
  const int of_stage = run.mesh.data * run.mesh.expert;
  for (int stage = 0; stage < run.mesh.pipeline; ++stage) {
    rank_class one{stage, {{stage * of_stage, (stage + 1) * of_stage - 1}}, {}};
    const stage_memory bytes = memory_of(model, run, static_cast<count>(stage));
    for (std::size_t t = 0; t < belay::tier_count; ++t)
      for (std::size_t p = 0; p < purpose_count; ++p) {
        const auto in = static_cast<belay::tier>(t);
        const auto of = static_cast<purpose>(p);
        if (bytes.at(in, of) > 0)
          one.rows.push_back({in, name(of), bytes.at(in, of), is_estimate(of) ? origin::estimate : origin::formula});
      }
    all.push_back(std::move(one));
  }
  return all;
}

/// Everything of a plan but its bytes.
[[nodiscard]] inline plan_result plan_without_bytes(const architecture& model, const setting& run,
                                                    const time_constants& with) {
  plan_result out;
  out.model = model;
  out.run = run;
  out.constants = with;
  for (count rank = 0; rank < run.pipeline_ranks(); ++rank) {
    const std::vector<parameter_block> blocks = blocks_of(model, run, rank);
    out.states.push_back({states_of(blocks, run, store_types(run.dtype)), states_of(blocks, run, paper_types),
                          bucket_bytes_of(blocks, run)});
  }
  const time_model times(model, run, with);
  out.time = times.of_step();
  out.bubble = times.bubble();
  return out;
}

/// A plan by formulas. `why` says why it is no rehearsal.
[[nodiscard]] inline plan_result estimated_plan(const architecture& model, const setting& run,
                                                const time_constants& with, std::string why) {
  plan_result out = plan_without_bytes(model, run, with);
  out.why_estimate = std::move(why);
  out.classes = estimated_classes(model, run);
  return out;
}

}  // namespace belay_plan
