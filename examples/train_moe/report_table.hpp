// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The numbers that ranks exchange at the end of a step, as one vector of doubles with an entry for every number of
// every rank. One all_reduce gives them to all ranks; adding zeros keeps the bits.
#pragma once

#include <cstddef>
#include <span>

#include "train_moe/options.hpp"

namespace train_moe {

class report_table {
 public:
  /// The numbers of one rank.
  enum number : std::size_t {
    live_device,
    peak_device,
    planned_device,
    live_host,
    peak_host,
    planned_host,
    device_allocations,
    host_allocations,
    open_obligations,
    bubble,
    forward_seconds,
    backward_seconds,
    numbers
  };

  explicit report_table(const options& run)
      : micro_batches_(run.micro_batches),
        layers_(run.model.layers),
        experts_(run.model.experts),
        ranks_(static_cast<std::size_t>(run.mesh.ranks())) {}

  [[nodiscard]] std::size_t size() const noexcept {
    return micro_batches_ + 2 * layers_ * micro_batches_ * experts_ + ranks_ * numbers;
  }

  /// Summed cross-entropy of a micro-batch of the global batch.
  [[nodiscard]] std::size_t loss(std::size_t micro_batch) const noexcept { return micro_batch; }
  /// Of one layer and micro-batch: first of `experts` probability sums.
  [[nodiscard]] std::size_t probabilities(std::size_t layer, std::size_t micro_batch) const noexcept {
    return micro_batches_ + (layer * micro_batches_ + micro_batch) * experts_;
  }
  /// Of one layer and micro-batch: first of `experts` numbers of selections.
  [[nodiscard]] std::size_t selections(std::size_t layer, std::size_t micro_batch) const noexcept {
    return probabilities(layer, micro_batch) + layers_ * micro_batches_ * experts_;
  }
  [[nodiscard]] std::size_t of_rank(std::size_t rank, number which) const noexcept {
    return micro_batches_ + 2 * layers_ * micro_batches_ * experts_ + rank * numbers + which;
  }

 private:
  std::size_t micro_batches_;
  std::size_t layers_;
  std::size_t experts_;
  std::size_t ranks_;
};

}  // namespace train_moe
