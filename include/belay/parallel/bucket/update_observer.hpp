// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All that takes part in the updates of parameters beside their optimizer: a phase that moves gradients and state away,
// graphs that queue a step's work, checkpoints that still read. The buckets have the list of them, in one order.
// IWYU pragma: private, include "belay/parallel/bucket.hpp"
#pragma once

#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Each does some of this, and leaves the rest as it is.
class update_observer {
 public:
  /// Parameters, or the state of their optimizer, are about to change. Throws where they may not.
  virtual void before_update(where /*at*/) {}

  /// Gradients and the state of optimizers are on the device from the first hold to the end of the last. Throws
  /// tier_file_error where they cannot be moved; where that is their return, there is no hold.
  virtual void begin_hold(where /*at*/) {}
  virtual void end_hold(where /*at*/) {}
  /// Whether the phase that this rank is in has them away: alike on all ranks, and also while they are held.
  [[nodiscard]] virtual bool away() const noexcept { return false; }

  /// Multiplies the gradients that this rank owns by `scale`, but for those in a file; then their chunks' sums of
  /// squares, in order.
  virtual void divide(double /*scale*/, where /*at*/) {}
  [[nodiscard]] virtual std::span<const double> squares(where /*at*/) { return {}; }
  /// Calls `queue()`, which queues an update of `optimizer`, or does what that would.
  virtual void queue_update(const void* /*optimizer*/, function_ref<void()> queue, where /*at*/) { queue(); }

 protected:
  ~update_observer() = default;
};

/// When an observer is called. What moves state comes first: it refuses, or brings back what the others use.
enum class observer_turn : std::uint8_t { moves_state, queues_work, reads_state };

class update_observation;

/// The observers of the updates of some buckets' parameters, and what optimizers were applied with. It stays where it
/// is.
class update_observers {
 public:
  update_observers() = default;
  update_observers(const update_observers&) = delete;
  update_observers& operator=(const update_observers&) = delete;

  /// `observer` is called in its turn while the result lives; those of one turn as they were added. Throws usage_error
  /// where another one moves the state.
  [[nodiscard]] update_observation add(update_observer& observer, observer_turn turn, where at = where::current());

  void before_update(where at) const {
    for (const observer_in_turn& each : all_) each.observer->before_update(at);
  }
  /// The last that was added of a turn; null where there is none.
  [[nodiscard]] update_observer* last(observer_turn turn) const noexcept {
    update_observer* out = nullptr;
    for (const observer_in_turn& each : all_)
      if (each.turn == turn) out = each.observer;
    return out;
  }
  [[nodiscard]] bool has(const update_observer& observer) const noexcept {
    for (const observer_in_turn& each : all_)
      if (each.observer == &observer) return true;
    return false;
  }

  /// A hash of what an optimizer was last applied with, and that of all.
  void note_update(std::uint64_t arguments) noexcept { updated_with_ = fnv1a(updated_with_).add(arguments).value(); }
  [[nodiscard]] std::uint64_t updated_with() const noexcept { return updated_with_; }

 private:
  friend update_observation;
  struct observer_in_turn {
    update_observer* observer;
    observer_turn turn;
  };

  // Loops, here and below: <ranges> costs each reader of the header more than all else in it.
  void remove(const update_observer& observer) noexcept {
    for (auto each = all_.begin(); each != all_.end(); ++each)
      if (each->observer == &observer) {
        all_.erase(each);
        return;
      }
  }

  std::vector<observer_in_turn> all_;  // by turn
  std::uint64_t updated_with_ = 0;
};

/// An observer's place among others, which it owns: the end of this is the end of that.
class [[nodiscard]] update_observation {
 public:
  /// Of nothing.
  update_observation() = default;
  update_observation(update_observation&& other) noexcept
      : all_(std::exchange(other.all_, nullptr)), observer_(other.observer_) {}
  update_observation& operator=(update_observation&& other) noexcept {
    std::swap(all_, other.all_);
    std::swap(observer_, other.observer_);
    return *this;
  }
  ~update_observation() {
    if (all_ != nullptr) all_->remove(*observer_);
  }

  /// Null where it observes nothing. They outlive it.
  [[nodiscard]] const update_observers* all() const noexcept { return all_; }

 private:
  friend update_observers;
  update_observation(update_observers& all, update_observer& observer) noexcept : all_(&all), observer_(&observer) {}

  update_observers* all_ = nullptr;
  update_observer* observer_ = nullptr;
};

inline update_observation update_observers::add(update_observer& observer, observer_turn turn, where at) {
  if (turn == observer_turn::moves_state && last(turn) != nullptr)
    throw usage_error("the gradients and the optimizer state of this store are moved by a phase_residency already", at);
  auto after = all_.end();
  while (after != all_.begin() && turn < std::prev(after)->turn) --after;
  all_.insert(after, {&observer, turn});
  return {*this, observer};
}

/// A scope that keeps moved memory on the device while it lives; then it is where it was. Where the mover has ended
/// before, the end of the hold does nothing.
class [[nodiscard]] residency_hold {
 public:
  /// Holds nothing.
  residency_hold() = default;
  /// By the one of `observers`, which outlive this, that moves state; there may be none, then and later.
  residency_hold(const update_observers& observers, where at) : among_(&observers) {
    hold(observers.last(observer_turn::moves_state), at);
  }
  /// `mover` outlives this.
  residency_hold(update_observer& mover, where at) { hold(&mover, at); }
  residency_hold(residency_hold&& other) noexcept
      : among_(other.among_), mover_(std::exchange(other.mover_, nullptr)) {}
  residency_hold& operator=(residency_hold&& other) noexcept {
    std::swap(among_, other.among_);
    std::swap(mover_, other.mover_);
    return *this;
  }
  /// As `end`; what cannot leave stays on the device.
  ~residency_hold() {
    try {
      end();
    } catch (...) {
    }
  }

  /// Ends it now. Throws tier_file_error where what is away otherwise cannot be written; it stays on the device.
  void end(where at = where::current()) {
    update_observer* const mover = std::exchange(mover_, nullptr);
    if (mover != nullptr && (among_ == nullptr || among_->has(*mover))) mover->end_hold(at);
  }

 private:
  void hold(update_observer* mover, where at) {
    if (mover == nullptr) return;
    mover->begin_hold(at);
    mover_ = mover;
  }

  const update_observers* among_ = nullptr;
  update_observer* mover_ = nullptr;
};

}  // namespace belay::inline BELAY_ABI
