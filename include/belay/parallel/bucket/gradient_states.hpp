// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The states that a bucket's gradients go through in a step, and the events that change them. All that asks whether
// gradients may be added to, reduced or taken asks these.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Open: the step has begun. Adding: a backward has added to it. Reducing: it has every contribution, and its reduction
/// is started in its turn. Reduced: an optimizer may take it. Consumed: nothing may.
enum class gradient_phase : std::uint8_t { open, adding, reducing, reduced, consumed };
inline constexpr std::size_t gradient_phases = 5;

/// Begun: the next step. Contributed, completed: one contribution, and the last. Over: the reduction. Applied,
/// discarded: by the owner of reduced gradients. Abandoned: missing contributions are awaited no longer, because peers
/// wait for the reduction. Withdrawn: the step ends without gradients.
enum class gradient_event : std::uint8_t {
  begun,
  contributed,
  completed,
  over,
  applied,
  discarded,
  abandoned,
  withdrawn
};
inline constexpr std::size_t gradient_events = 8;

/// The phase after `event`; none where that is refused:
///
/// | phase    | begun | contributed | completed | over    | applied  | discarded | abandoned | withdrawn |
/// | -------- | ----- | ----------- | --------- | ------- | -------- | --------- | --------- | --------- |
/// | open     |       | adding      | reducing  |         |          |           | reducing  | consumed  |
/// | adding   |       | adding      | reducing  |         |          |           | reducing  | consumed  |
/// | reducing |       |             |           | reduced |          |           | reducing  | consumed  |
/// | reduced  | open  |             |           |         | consumed | consumed  |           |           |
/// | consumed | open  |             |           |         |          |           |           |           |
///
/// Divided gradients are also reduced micro-batch by micro-batch while the bucket is adding; `completed` is the last.
[[nodiscard]] constexpr std::optional<gradient_phase> phase_after(gradient_phase phase, gradient_event event) noexcept {
  using enum gradient_phase;
  constexpr std::optional<gradient_phase> none;
  constexpr std::array<std::array<std::optional<gradient_phase>, gradient_events>, gradient_phases> table{{
      {none, adding, reducing, none, none, none, reducing, consumed},
      {none, adding, reducing, none, none, none, reducing, consumed},
      {none, none, none, reduced, none, none, reducing, consumed},
      {open, none, none, none, consumed, consumed, none, none},
      {open, none, none, none, none, none, none, none},
  }};
  return table[static_cast<std::size_t>(phase)][static_cast<std::size_t>(event)];
}

/// The states of all buckets of a rank, and that of the step, which has one also where there is no bucket.
class gradient_states {
 public:
  explicit gradient_states(std::size_t buckets) : buckets_(buckets) {}

  [[nodiscard]] gradient_phase of(std::size_t bucket) const noexcept { return buckets_[bucket].phase; }
  /// From `begin` until gradients are reduced or withdrawn.
  [[nodiscard]] bool in_step() const noexcept { return step_.phase < gradient_phase::reduced; }
  /// Whether the gradients of that reduction are there, and nothing has taken them.
  [[nodiscard]] bool holds(std::uint64_t reduction) const noexcept {
    return step_.phase == gradient_phase::reduced && reduction == reductions_;
  }
  [[nodiscard]] bool holds_any() const noexcept { return step_.phase == gradient_phase::reduced; }

  /// Begins a step in which bucket `b` gets `contributions(b)` contributions. False where a step is open.
  template <class Contributions>
  bool begin(const Contributions& contributions) {
    if (!step_.take(gradient_event::begun)) return false;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      buckets_[b].take(gradient_event::begun);
      buckets_[b].awaited = contributions(b);
      if (buckets_[b].awaited == 0) buckets_[b].take(gradient_event::completed);
    }
    started_ = 0;
    return true;
  }
  /// False where the bucket has all of its contributions.
  bool contribute(std::size_t bucket) noexcept {
    bucket_state& one = buckets_[bucket];
    return one.take(one.awaited == 1 ? gradient_event::completed : gradient_event::contributed) &&
           (--one.awaited, true);
  }
  /// All contributions were made, and all reductions started, by a graph.
  void recall() noexcept {
    for (bucket_state& each : buckets_) each.take(gradient_event::completed);
    started_ = buckets_.size();
  }

  /// Buckets whose reduction was started in this step: the first ones, because all ranks start them in one order.
  [[nodiscard]] std::size_t started() const noexcept { return started_; }
  /// Whether the next one has every contribution.
  [[nodiscard]] bool can_start() const noexcept {
    return started_ < buckets_.size() && of(started_) == gradient_phase::reducing;
  }
  void note_started() noexcept { ++started_; }

  /// All reductions of a complete step are over. Returns the number of this reduction, from 1.
  std::uint64_t note_over() noexcept {
    step_.take(gradient_event::completed);
    take_all(gradient_event::over);
    return ++reductions_;
  }
  /// False, and nothing has changed, where the gradients of that reduction are not there or were taken before.
  bool apply(std::uint64_t reduction) noexcept { return holds(reduction) && take_all(gradient_event::applied); }
  bool discard(std::uint64_t reduction) noexcept { return holds(reduction) && take_all(gradient_event::discarded); }
  /// False where no step is open.
  bool abandon() noexcept { return take_all(gradient_event::abandoned); }
  bool withdraw() noexcept { return take_all(gradient_event::withdrawn); }

 private:
  struct bucket_state {
    gradient_phase phase = gradient_phase::consumed;
    std::size_t awaited = 0;  // contributions

    bool take(gradient_event event) noexcept {
      const std::optional<gradient_phase> next = phase_after(phase, event);
      if (next) phase = *next;
      return next.has_value();
    }
  };

  bool take_all(gradient_event event) noexcept {
    if (!step_.take(event)) return false;
    for (bucket_state& each : buckets_) each.take(event);
    return true;
  }

  std::vector<bucket_state> buckets_;
  bucket_state step_;
  std::size_t started_ = 0;
  std::uint64_t reductions_ = 0;
};

}  // namespace belay::inline BELAY_ABI
