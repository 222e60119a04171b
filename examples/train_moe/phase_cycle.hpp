// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The phases that a run repeats: --phases train=4,eval=1,rollout=1.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "belay/step/phase.hpp"

namespace train_moe {

/// Training steps, and what follows them before the next ones. Without entries, training alone.
class phase_cycle {
 public:
  /// `count` is of steps, passes of evaluation or rollouts.
  struct cycle_entry {
    belay::phase which;
    std::size_t count;
  };

  phase_cycle() = default;
  /// The first entry is training.
  explicit phase_cycle(std::vector<cycle_entry> entries) : entries_(std::move(entries)) {}

  [[nodiscard]] const std::vector<cycle_entry>& entries() const noexcept { return entries_; }
  /// Whether training gives way after step `number`, from 1.
  [[nodiscard]] bool ends_with(std::size_t number) const noexcept {
    return entries_.size() > 1 && number % entries_.front().count == 0;
  }
  /// Passes of evaluation, or rollouts, until after step `number`.
  [[nodiscard]] std::size_t passes_until(std::size_t number, belay::phase which) const noexcept {
    std::size_t out = 0;
    for (const cycle_entry& each : entries_)
      if (each.which == which) out += number / entries_.front().count * each.count;
    return out;
  }
  [[nodiscard]] bool has(belay::phase which) const noexcept {
    for (const cycle_entry& each : entries_)
      if (each.which == which) return true;
    return false;
  }
  /// "train=4,eval=1"; empty without entries.
  [[nodiscard]] std::string text() const {
    std::string out;
    for (const cycle_entry& each : entries_)
      out += (out.empty() ? "" : ",") + std::string(name(each.which)) + "=" + std::to_string(each.count);
    return out;
  }

 private:
  std::vector<cycle_entry> entries_;
};

}  // namespace train_moe
