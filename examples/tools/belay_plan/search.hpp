// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All settings of so many ranks that a model can be trained with, those that fit a budget first found fastest: meshes
// of pp, dp and ep, micro-batches, ZeRO stages, recomputation, schedules and what is offloaded.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "belay/device/tier.hpp"
#include "tools/belay_plan/memory.hpp"
#include "tools/belay_plan/step_time.hpp"

namespace belay_plan {

struct candidate {
  setting run;
  std::array<count, belay::tier_count> bytes{};  // of the fullest rank in each tier, by formulas
  double seconds = 0;
  std::size_t number = 0;  // in the order in which they were tried

  [[nodiscard]] bool fits(const belay::budget& limit, double slack = 1) const noexcept {
    for (std::size_t t = 0; t < bytes.size(); ++t)
      if (limit.bytes[t] != belay::unlimited_bytes &&
          static_cast<double>(bytes[t]) > slack * static_cast<double>(limit.bytes[t]))
        return false;
    return true;
  }
};

/// Whether two differ in nothing but what is divided, recomputed, scheduled and offloaded.
[[nodiscard]] inline bool same_shape(const setting& a, const setting& b) noexcept {
  return a.mesh == b.mesh && a.micro_batch_size == b.micro_batch_size;
}

/// How many kinds of state and activations are in a lower tier.
[[nodiscard]] inline int offloaded(const tiers& where) noexcept {
  int out = 0;
  for (const belay::tier each : {where.optimizer, where.parameters, where.gradients, where.activations})
    out += each != belay::tier::device ? 1 : 0;
  return out;
}

/// The fullest rank of each tier.
[[nodiscard]] inline std::array<count, belay::tier_count> fullest(const architecture& model, const setting& run) {
  std::array<count, belay::tier_count> most{};
  for (count rank = 0; rank < run.pipeline_ranks(); ++rank) {
    const stage_memory one = memory_of(model, run, rank);
    for (std::size_t t = 0; t < most.size(); ++t) most[t] = std::max(most[t], one.total(static_cast<belay::tier>(t)));
  }
  return most;
}

class plan_search {
 public:
  /// `base` has what is not searched: global batch, sequence, type, capacity. State is offloaded to tier `lower`.
  plan_search(const architecture& model, const setting& base, count ranks, const belay::budget& limit,
              const time_constants& with, belay::tier lower = belay::tier::host,
              std::vector<std::string> schedules = {"1f1b", "gpipe"})
      : model_(&model),
        base_(base),
        ranks_(ranks),
        limit_(limit),
        with_(with),
        lower_(lower),
        schedules_(std::move(schedules)) {}

  /// Those that fit the budget, or miss it by no more than the factor `slack`, fastest first; of equally fast ones that
  /// with less offloaded, and then with less on the device, comes first. Afterwards `least()` is what needs least of
  /// the device, whether it fits or not.
  [[nodiscard]] std::vector<candidate> run(double slack = 1) {
    found_.clear();
    all_ = 0;
    slack_ = slack;
    for (count pp = 1; pp <= std::min(ranks_, model_->layers); ++pp) {
      if (ranks_ % pp != 0) continue;
      for (count ep = 1; ep <= std::max<count>(model_->most_experts(), 1); ++ep) {
        if (ranks_ / pp % ep != 0 || (ep > 1 && model_->most_experts() % ep != 0)) continue;
        base_.mesh = {.pipeline = static_cast<int>(pp),
                      .data = static_cast<int>(ranks_ / pp / ep),
                      .expert = static_cast<int>(ep)};
        try_micro_batches();
      }
    }
    std::sort(found_.begin(), found_.end(), [](const candidate& a, const candidate& b) {
      if (a.seconds != b.seconds) return a.seconds < b.seconds;
      const int moved_a = offloaded(a.run.offload), moved_b = offloaded(b.run.offload);
      if (moved_a != moved_b) return moved_a < moved_b;
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.number < b.number;
    });
    return std::move(found_);
  }

  [[nodiscard]] std::size_t tried() const noexcept { return all_; }
  [[nodiscard]] const candidate& least() const noexcept { return least_; }

 private:
  void try_micro_batches() {
    for (count each = 1; each <= base_.global_batch; each *= 2) {
      base_.micro_batch_size = each * base_.expert_ranks();
      if (base_.micro_batch_size > base_.global_batch) return;
      if (base_.global_batch % base_.micro_batch_size != 0 || base_.all_micro_batches() % base_.replicas() != 0)
        continue;
      try_schedules();
    }
  }

  void try_schedules() {
    const auto ranks = static_cast<std::size_t>(base_.pipeline_ranks());
    for (const std::string& each : schedules_) {
      base_.schedule = {each, nullptr};
      const std::size_t chunks = base_.schedule.chunks();
      if (base_.pipeline_ranks() * chunks > model_->layers ||
          base_.schedule.least_micro_batches(ranks) > base_.micro_batches() || ranks * chunks > most_stages)
        continue;
      static_cast<void>(base_.laid());  // once for all that are copied from it
      times_.clear();
      try_memory();
      if (ranks == 1) return;  // the others are the same
    }
  }

  void try_memory() {
    const bool alone = base_.replicas() * base_.expert_ranks() == 1;
    for (int zero = alone ? 1 : 0; zero <= (alone ? 1 : 3); ++zero)
      for (const recompute_kind recompute : all_recomputes) {
        setting one = base_;
        one.zero = zero;
        one.recompute = recompute;
        for (const belay::tier activations : {belay::tier::device, lower_})
          for (int moved = 0; moved <= std::max(zero, 1); ++moved) {
            one.offload = {.optimizer = moved >= 1 ? lower_ : belay::tier::device,
                           .parameters = moved >= 3 ? lower_ : belay::tier::device,
                           .gradients = moved >= 2 ? lower_ : belay::tier::device,
                           .activations = activations};
            try_one(one);
          }
      }
  }

  void try_one(const setting& one) {
    candidate now{one, fullest(*model_, one), 0, all_};
    const std::size_t device = static_cast<std::size_t>(belay::tier::device);
    if (all_++ == 0 || now.bytes[device] < least_.bytes[device]) least_ = now;
    if (!now.fits(limit_, slack_)) return;
    const time_model times(*model_, one, with_);
    now.seconds = step_time{pipeline_of(times), times.states()}.all();
    found_.push_back(now);
  }
  // Most settings of a schedule have stages that take as long as those of another.
  [[nodiscard]] double pipeline_of(const time_model& times) {
    staged_times stages = times.of_stages();
    for (const auto& [known, seconds] : times_)
      if (known == stages) return seconds;
    times_.emplace_back(std::move(stages), 0);
    return times_.back().second = times.pipeline(times_.back().first);
  }

  static constexpr std::size_t most_stages = 1024;  // of a schedule that is searched

  const architecture* model_;
  setting base_;
  count ranks_;
  belay::budget limit_;
  time_constants with_;
  belay::tier lower_;
  std::vector<std::string> schedules_;
  std::vector<std::pair<staged_times, double>> times_;  // of the schedule that is tried
  double slack_ = 1;
  std::vector<candidate> found_;
  candidate least_;
  std::size_t all_ = 0;
};

}  // namespace belay_plan
