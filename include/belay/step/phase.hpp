// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The phases of a training run, and the orders that their steps follow. Steps run in `train`, forward-only passes in
// any phase; `phase_switch` (train/phase_switch.hpp) goes from one to another. Each has an order of gathers of its own.
// A rehearsal notes an order; the run follows it, and never changes it.
//
//   if (run.engine().current_phase() == belay::phase::rollout) ...
//
//   belay::call_order order{{2, 1, 0}};
//   order.begin();
//   const bool as_planned = order.advance(2);   // then order.next() is 1
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"

namespace belay::inline BELAY_ABI {

/// The phase of a rank: it trains, it evaluates, or it lets the model write.
enum class phase : std::uint8_t { train, eval, rollout };

/// All phases, and how many.
inline constexpr std::array all_phases{phase::train, phase::eval, phase::rollout};
inline constexpr std::size_t phase_count = all_phases.size();

/// The name: "train", "eval", "rollout".
[[nodiscard]] constexpr const char* name(phase which) noexcept {
  constexpr const char* names[] = {"train", "eval", "rollout"};
  return names[static_cast<std::size_t>(which)];
}

/// The order in which a step does something with numbered things, such as gathering its layers or bringing back what
/// its calls keep. Immutable in a run.
class call_order {
 public:
  /// No number: the order is at its end.
  static constexpr std::uint32_t nothing = 0xffffffffU;

  /// An empty order, or one that a rehearsal has found.
  call_order() = default;
  explicit call_order(std::vector<std::uint32_t> numbers) : numbers_(std::move(numbers)) {}

  /// The step begins: the first number comes next.
  void begin() noexcept { at_ = 0; }
  /// The number that comes next, or after `more` others; `nothing` beyond the end of the order.
  [[nodiscard]] std::uint32_t next(std::size_t more = 0) const noexcept {
    return more < numbers_.size() - at_ ? numbers_[at_ + more] : nothing;
  }
  /// `number` comes: whether it is the next one.
  [[nodiscard]] bool advance(std::uint32_t number) noexcept {
    if (next() != number) return false;
    ++at_;
    return true;
  }

  /// For a rehearsal.
  void note(std::uint32_t number) { numbers_.push_back(number); }
  [[nodiscard]] const std::vector<std::uint32_t>& numbers() const noexcept { return numbers_; }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept {
    fnv1a hash;
    for (std::uint32_t number : numbers_) hash.add(number);
    return hash.value();
  }

 private:
  std::vector<std::uint32_t> numbers_;
  std::size_t at_ = 0;
};

/// An order as a run is to follow it, and as it was found.
struct rehearsed_order {
  /// The order that a rehearsal has noted, and the one that was found.
  call_order expected, found;
};

}  // namespace belay::inline BELAY_ABI
