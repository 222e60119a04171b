// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// State that may be away from the device, and the scope in which it is there. Who moves it, a `phase_residency`, tells
// its stores; who reads or writes it asks them, and need not know whether it has moved.
//
//   { const auto here = store.hold_state(); read(optimizer); }   // it was brought, and leaves again
#pragma once

#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Moves gradients and the state of optimizers away from the device, and back.
class state_mover {
 public:
  /// The first hold brings back what is away. Throws tier_file_error where it cannot; then there is no hold.
  virtual void begin_hold(where at) = 0;
  /// Once for each: the last one moves away what the phase has away. Throws tier_file_error where it cannot; then all
  /// stays on the device.
  virtual void end_hold(where at) = 0;
  /// Whether the phase that this rank is in has it away: alike on all ranks, and also while it is held.
  [[nodiscard]] virtual bool away() const noexcept = 0;
  /// Whether all of it is on the device.
  [[nodiscard]] virtual bool here() const noexcept = 0;

 protected:
  ~state_mover() = default;
};

/// A scope that keeps moved memory on the device while it lives; then it is where it was. Where the mover has ended
/// before, the end of the hold does nothing.
class [[nodiscard]] residency_hold {
 public:
  /// Holds nothing.
  residency_hold() = default;
  /// `mover` may be null, then and later; the place where that stands outlives this.
  residency_hold(state_mover* const& mover, where at) {
    if (mover == nullptr) return;
    mover->begin_hold(at);
    mover_ = &mover;
  }
  residency_hold(residency_hold&& other) noexcept : mover_(std::exchange(other.mover_, nullptr)) {}
  residency_hold& operator=(residency_hold&& other) noexcept {
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
    state_mover* const* const of = std::exchange(mover_, nullptr);
    if (of != nullptr && *of != nullptr) (*of)->end_hold(at);
  }

 private:
  state_mover* const* mover_ = nullptr;
};

}  // namespace belay::inline BELAY_ABI
