// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Memory that is on the device while a run trains, and in a lower tier in its other phases: gradients and the state of
// optimizers. A transition takes one residency and returns the other, chunk by chunk, so that both are never there.
// What the state is read for meanwhile, such as a checkpoint, has it back for a scope.
//
//   belay::phase_residency residency{run, belay::tier::host, store};   // after stores and optimizers
//   phases.moves(residency);
//   auto evaluating = phases.to_eval(std::move(training));             // the state leaves
//   { const auto here = residency.hold(); save(optimizer); }           // it is back, and leaves again
//   training = phases.to_train(std::move(evaluating));                 // and it is back
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/tier.hpp"

namespace belay::inline BELAY_ABI {

/// Run and stores outlive it.
template <class Run>
class phase_residency {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

  /// All gradients and states of optimizers that `run` has leased on the device so far. In `lower` they get as much
  /// memory, which is planned, and is theirs for as long as the run; in tier device nothing ever leaves. `stores` have
  /// the state: what still reads it, such as a checkpoint that is being written, ends that before it leaves. Throws
  /// usage_error for tier file.
  template <class... Stores>
  phase_residency(Run& run, tier lower, Stores&... stores) : run_(&run), lower_(lower) {
    const where at = where::current();
    if (lower == tier::file)
      throw usage_error("what leaves the device between phases goes to tier host or pinned, not to tier file", at);
    if (lower == tier::device) return;
    for (const char* purpose : {"gradients", "reductions", "gradients on the wire", "optimizer state"})
      for (const auto& here : run.leases_of(tier::device, purpose)) {
        const std::span<std::byte> away = run.lease_beside(here, lower, "out of phase", at);
        run.vacate(lower, away);
        ranges_.push_back({here.memory, away});
        bytes_ += leased_size(away.size());
      }
    before_ = [&stores...] { (stores.note_before_update(), ...); };
  }
  phase_residency(const phase_residency&) = delete;  // phases point to it
  phase_residency& operator=(const phase_residency&) = delete;

  /// Moves all to the lower tier; returns the bytes that have left the device: 0 where they had. Between steps, with
  /// nothing queued.
  std::size_t leave() {
    if (ranges_.empty() || std::exchange(away_, true)) return 0;
    before_();
    for (const range& each : ranges_) move(each.here, tier::device, each.away, lower_);
    return bytes_;
  }
  /// Moves all back; returns the bytes that have come: 0 where they were there.
  std::size_t come_back() noexcept {
    if (!std::exchange(away_, false)) return 0;
    for (const range& each : ranges_) move(each.away, lower_, each.here, tier::device);
    return bytes_;
  }

  /// All is on the device while it lives, and then where it was. What of it is being written then is waited for; if
  /// that fails, it stays on the device.
  class [[nodiscard]] held {
   public:
    explicit held(phase_residency& of) noexcept : of_(&of), was_away_(of.away_) { of.come_back(); }
    held(const held&) = delete;
    held& operator=(const held&) = delete;
    ~held() {
      if (was_away_) of_->leave_again();
    }

   private:
    phase_residency* of_;
    bool was_away_;
  };
  held hold() noexcept { return held(*this); }

  /// Bytes that it moves, and where they are when they are not on the device.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] tier lower() const noexcept { return lower_; }
  [[nodiscard]] bool away() const noexcept { return away_; }
  /// The most bytes that were in both tiers together at a time of a move.
  [[nodiscard]] std::size_t most_in_both() const noexcept { return most_in_both_; }

 private:
  struct range {
    std::span<std::byte> here, away;
  };

  void leave_again() noexcept {
    try {
      leave();
    } catch (...) {
      away_ = false;  // nothing has moved
    }
  }

  void move(std::span<std::byte> from, tier of_from, std::span<std::byte> to, tier of_to) noexcept {
    const tier_meters& meters = run_->meters();
    const std::size_t others = meters[of_from].live_bytes() + meters[of_to].live_bytes() - bytes_;
    for (std::size_t i = 0; i < from.size(); i += chunk_bytes) {
      const std::size_t count = std::min(chunk_bytes, from.size() - i);
      run_->occupy(of_to, to.subspan(i, count));
      most_in_both_ = std::max(most_in_both_, meters[of_from].live_bytes() + meters[of_to].live_bytes() - others);
      if constexpr (!Run::rehearsing()) std::memcpy(to.data() + i, from.data() + i, count);
      run_->vacate(of_from, from.subspan(i, count));
    }
  }

  Run* run_;
  tier lower_;
  std::vector<range> ranges_;
  std::function<void()> before_;
  std::size_t bytes_ = 0, most_in_both_ = 0;
  bool away_ = false;
};

}  // namespace belay::inline BELAY_ABI
