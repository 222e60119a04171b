// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a report page is made of: the subject of the run, known before the first step, and a sample of every step.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/view.hpp"

namespace belay::inline BELAY_ABI {

/// A number of a sample that the trainer does not have.
inline constexpr double unknown_number = no_number<double>;

/// An event at a step beside its training.
enum class report_mark : std::uint8_t { replay, refusal, plan_miss, phase, checkpoint, resume };
inline constexpr std::size_t report_mark_count = 6;

[[nodiscard]] constexpr const char* name(report_mark mark) noexcept {
  switch (mark) {
    case report_mark::replay: return "replay";
    case report_mark::refusal: return "refusal";
    case report_mark::plan_miss: return "plan miss";
    case report_mark::phase: return "phase";
    case report_mark::checkpoint: return "checkpoint";
    case report_mark::resume: return "resume";
  }
  return "unknown";
}

/// Memory for one purpose in one tier. Bytes are planned ones: of the rank that samples show, and over all ranks.
struct report_row {
  std::string tier;
  std::string purpose;
  std::uint64_t planned = 0;
  std::uint64_t smallest = 0;
  std::uint64_t largest = 0;
  std::uint64_t total = 0;
};

/// A line of a table.
struct report_setting {
  std::string name;
  std::string value;
};

/// The facts of a run that are the same in all its samples.
struct report_subject {
  std::string title;                       // the program, or the run's name
  std::uint64_t steps = 0;                 // of the whole run; 0: not known
  std::size_t ranks = 1;                   //
  std::size_t layers = 0;                  // with experts; 0: there are none
  std::size_t experts = 0;                 // of a layer
  std::size_t shown_rank = 0;              // whose memory samples have, that with most in tier device
  std::vector<report_row> memory = {};     // rows of a tier follow each other
  std::vector<report_setting> setup = {};  // settings of the run
  std::string loss_unit = "nats a token";  //
};

/// Bytes of the tiers that `report_subject::memory` names, in the order in which it does.
struct report_tier {
  std::uint64_t live = 0;     // leased after the step
  std::uint64_t peak = 0;     // the most at once so far
  std::uint64_t planned = 0;  // the peak by the plan of the step; 0: as the subject has it
  std::uint64_t most = 0;     // the largest peak of any rank; 0: not known
};

/// A compute of a micro-batch by a stage of a pipeline, and when: seconds, from any moment on. A backward is an input
/// gradient and a weight gradient in one.
struct report_action {
  std::size_t stage = 0;  // or rank, where ranks hold several stages
  std::size_t micro_batch = 0;
  enum class pass_kind : std::uint8_t { forward, backward, input_gradient, weight_gradient } what = pass_kind::forward;
  double begin = 0;
  double end = 0;
  std::size_t chunk = 0;  // which of the rank's stages
};
/// After an action of the shown rank: what is leased in the subject's first tier, and obligations that are open.
struct report_moment {
  std::uint64_t live = 0;
  std::uint64_t open = 0;
};

/// One kind of communication in a step: for how long each rank has waited in it for the last to come, and the rank that
/// has let others wait longest.
struct report_wait {
  std::string_view operation;
  std::uint64_t calls = 0;          // of groups
  std::size_t last_rank = 0;        //
  std::uint64_t last_calls = 0;     // in which it came last
  double last_seconds = 0;          // that the others waited for it, all together
  std::span<const double> seconds;  // by rank
};

/// A committed step. It points to the caller's memory. What is not known is left as it is.
struct report_sample {
  std::uint64_t step = 0;                           // from 1
  double loss = unknown_number;                     // in the subject's unit
  double learning_rate = unknown_number;            //
  double tokens_per_s = unknown_number;             //
  double flops_utilization = unknown_number;        // share of the peak, 0 to 1
  double grad_norm = unknown_number;                // before clipping
  double bubble = unknown_number;                   // share of the pipeline phase, 0 to 1, mean over ranks
  double bubble_predicted = unknown_number;         //
  std::uint64_t replays = 0;                        // of this step, before it was committed
  std::uint64_t plan_misses = 0;                    //
  std::span<const report_tier> tiers = {};          // of the rank that is shown
  std::span<const std::uint64_t> live = {};         // of each row of the subject's memory: they add up to the tiers'
  std::span<const double> waiting = {};             // of each rank: share of its pipeline phase, 0 to 1
  view<const std::uint64_t, 2> expert_tokens = {};  // [layer][expert], over all ranks
  // Of the last step a page shows these too, the first 2,048 of each.
  std::span<const report_action> executed = {};  // of one pipeline
  std::span<const report_action> planned = {};   // the same, as the schedule would be with the stages' mean times
  std::span<const report_moment> moments = {};
  std::span<const std::uint64_t> moment_live =
      {};                                   // [moment][row of the subject's memory]: what is leased then, by row
  std::span<const report_wait> waits = {};  // of step `waits_step`; eight of them, of which the first waits most
  std::uint64_t waits_step = 0;
};

/// The curves that a page keeps.
enum class report_curve : std::uint8_t {
  loss,
  eval_loss,
  learning_rate,
  tokens_per_s,
  flops_utilization,
  grad_norm,
  bubble,
  bubble_predicted,
  waiting_least,
  waiting_median,
  waiting_most
};
inline constexpr std::size_t report_curve_count = 11;

/// The numbers of a sample that are a curve of their own, and their names in a line of samples.jsonl.
struct sampled_curve {
  using number = double report_sample::*;  // by a name: what nvcc writes for g++ otherwise has parentheses too many

  report_curve curve;
  const char* name;
  number value;
};
inline constexpr sampled_curve sampled_curves[] = {
    {report_curve::loss, "loss", &report_sample::loss},
    {report_curve::learning_rate, "learning_rate", &report_sample::learning_rate},
    {report_curve::tokens_per_s, "tokens_per_s", &report_sample::tokens_per_s},
    {report_curve::flops_utilization, "flops_utilization", &report_sample::flops_utilization},
    {report_curve::grad_norm, "grad_norm", &report_sample::grad_norm},
    {report_curve::bubble, "bubble", &report_sample::bubble},
    {report_curve::bubble_predicted, "bubble_predicted", &report_sample::bubble_predicted}};

/// The tiers of a subject's memory, in its order, with the number of their first row and their planned bytes.
struct report_tier_rows {
  std::string tier;
  std::size_t first = 0;
  std::size_t count = 0;
  std::uint64_t planned = 0;
};
[[nodiscard]] inline std::vector<report_tier_rows> tiers_of(const std::vector<report_row>& memory) {
  std::vector<report_tier_rows> out;
  for (std::size_t row = 0; row < memory.size(); ++row) {
    if (out.empty() || out.back().tier != memory[row].tier) out.push_back({memory[row].tier, row, 0, 0});
    ++out.back().count;
    out.back().planned += memory[row].planned;
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
