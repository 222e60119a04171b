// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ends of communications that were started while a stream was captured: places of the rank's communication stream.
// They stand for the graph's launches, and nobody can wait for one before the first.
// IWYU pragma: private, include "belay/backend/cuda/group.hpp"
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/lost_handles.hpp"
#include "belay/comm/pending.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <device_api Api>
class captured_ends final : public completion_source, public device_places<Api> {
 public:
  using state_type = stream_state<Api>;

  /// `lost` outlives it.
  captured_ends(std::shared_ptr<const state_type> of, lost_handles& lost) noexcept : of_(std::move(of)), lost_(&lost) {}

  [[nodiscard]] bool over(std::uint64_t place) const noexcept override { return of_->over(place); }
  [[nodiscard]] bool wait_until(std::uint64_t place, std::chrono::steady_clock::time_point deadline,
                                where at) const override {
    return of_->wait_until(place, deadline, at);
  }
  void expect_done(std::uint64_t place, where at) const override { of_->expect_done(place, at); }
  void let_wait(const state_type& other, std::uint64_t place, where at) const override {
    of_->let_wait(other, place, at);
  }
  void wait(std::uint64_t place, operation, where at) override {
    static_cast<void>(wait_until(place, largest_value<std::chrono::steady_clock::time_point>, at));
    expect_done(place, at);
  }
  void hand_to_stream(std::uint64_t, operation, where) override {}
  void abandon(std::uint64_t, where started_at) noexcept override { lost_->note(started_at); }

 private:
  std::shared_ptr<const state_type> of_;
  lost_handles* lost_;
};

}  // namespace belay::inline BELAY_ABI::cuda
