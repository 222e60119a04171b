// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The numbers that ranks exchange at the end of a step, as one vector of doubles. One all_reduce gives them to all
// ranks; adding zeros keeps the bits, and tokens are whole numbers. What experts did is folded by the ranks that know
// it: its numbers grow with layers x micro-batches and with layers x experts, not with all three.
#pragma once

#include <cstddef>
#include <span>

#include "belay/core/finite.hpp"
#include "belay/parallel/schedule.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

class report_table {
 public:
  /// The numbers of one rank.
  enum number : std::size_t {
    bubble,
    prefetch_hits,
    plan_misses,
    gathered_bytes,
    offloaded_pinned,
    offloaded_host,
    offloaded_file,
    copied_nanoseconds,
    waited_nanoseconds,
    numbers
  };
  /// Of a bubble or of seconds that are not measured: those of the stream of a device, but in a traced step.
  static constexpr double unknown = belay::no_number<double>;

  /// Of a pipeline of `stages`.
  report_table(const options& run, std::size_t stages)
      : micro_batches_(run.micro_batches),
        layers_(run.model.layers),
        experts_(run.model.experts),
        ranks_(static_cast<std::size_t>(run.mesh.ranks())),
        stages_(stages) {}

  [[nodiscard]] std::size_t size() const noexcept { return of_stage(stages_, {}); }

  /// Summed cross-entropy of a micro-batch of the global batch.
  [[nodiscard]] std::size_t loss(std::size_t micro_batch) const noexcept { return micro_batch; }
  /// The load-balancing term of one layer and micro-batch.
  [[nodiscard]] std::size_t balance(std::size_t layer, std::size_t micro_batch) const noexcept {
    return micro_batches_ + layer * micro_batches_ + micro_batch;
  }
  /// Tokens that chose an expert of one layer, over all micro-batches.
  [[nodiscard]] std::size_t tokens(std::size_t layer, std::size_t expert) const noexcept {
    return balance(layers_, 0) + layer * experts_ + expert;
  }
  [[nodiscard]] std::size_t of_rank(std::size_t rank, number which) const noexcept {
    return tokens(layers_, 0) + rank * numbers + which;
  }
  /// Seconds of a compute of one stage, mean over micro-batches: one of several kinds. They are summed over the ranks
  /// that have the stage, one of each pipeline and expert.
  [[nodiscard]] std::size_t of_stage(std::size_t stage, belay::schedule::action_kind kind) const noexcept {
    return of_rank(ranks_, bubble) + stage * kinds + static_cast<std::size_t>(kind);
  }
  static constexpr std::size_t kinds = 4;  // forward, backward, input gradient, weight gradient

 private:
  std::size_t micro_batches_;
  std::size_t layers_;
  std::size_t experts_;
  std::size_t ranks_;
  std::size_t stages_;
};

/// Ranks of the run that have the same stage.
[[nodiscard]] inline std::size_t ranks_of_stage(const options& run) {
  return static_cast<std::size_t>(run.mesh.ranks()) / static_cast<std::size_t>(run.mesh.pipeline);
}

/// The seconds of a stage's computes, of the numbers that ranks have shared.
struct stage_seconds {
  const report_table* table;
  std::span<const double> shared;
  std::size_t ranks;  // with the same stage

  [[nodiscard]] double operator()(std::size_t stage, belay::schedule::action_kind kind) const noexcept {
    return shared[table->of_stage(stage, kind)] / static_cast<double>(ranks);
  }
};

}  // namespace train_moe
