// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// By what a step's gradients are divided, once: the number of samples or of target tokens of the whole global batch.
//
//   auto outcome = std::move(step).commit(mesh, belay::samples{64});            // of all ranks, equal on all
//   auto outcome = std::move(step).commit(mesh, belay::local_targets{counted});  // of this rank; the commit sums them
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/step/participant.hpp"

namespace belay::inline BELAY_ABI {

/// The number of target tokens of the global batch, equal on all ranks.
class target_tokens {
 public:
  /// Throws usage_error for 0.
  explicit target_tokens(std::size_t count, where at = where::current()) : count_(count) {
    if (count == 0) throw usage_error("a batch without target tokens has no mean", at);
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// For a step's commit.
  [[nodiscard]] divisor_value value() const noexcept { return {count_, divisor_value::counted::on_all_ranks}; }

 private:
  std::size_t count_;
};

/// The number of samples of the global batch, equal on all ranks.
class samples {
 public:
  /// Throws usage_error for 0.
  explicit samples(std::size_t count, where at = where::current()) : count_(count) {
    if (count == 0) throw usage_error("a batch without samples has no mean", at);
  }
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// For a step's commit.
  [[nodiscard]] divisor_value value() const noexcept { return {count_, divisor_value::counted::on_all_ranks}; }

 private:
  std::size_t count_;
};

/// The target tokens of this rank's part of the batch (0 or more), where the global number is not known: they are
/// summed over the ranks that divide the batch.
class local_targets {
 public:
  /// May be 0 on some ranks.
  explicit constexpr local_targets(std::size_t count) noexcept : count_(count) {}
  [[nodiscard]] constexpr std::size_t count() const noexcept { return count_; }
  /// For a step's commit.
  [[nodiscard]] constexpr divisor_value value() const noexcept {
    return {count_, divisor_value::counted::on_this_rank};
  }

 private:
  std::size_t count_;
};

}  // namespace belay::inline BELAY_ABI
