// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stream that is in captures beside the one that is captured: its order forks from that one's when the capture
// begins, and joins it before the end. In a launch, as between parts that are not captured, each comes after all that
// both were given before. So what one part has queued on either stream is over, or will be, when the next one uses it.
// The ends of communications that were started meanwhile are places of the rank's communication stream.
// IWYU pragma: private, include "belay/backend/cuda/stream.hpp"
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/graph.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/pending.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Places that a stream has marked in a capture.
struct captured_places {
  std::uint64_t first = 1, last = 0;
};

/// Of one stream; by the rank's host thread.
template <device_api Api>
class captured_fork {
 public:
  using state_type = stream_state<Api>;

  explicit captured_fork(std::shared_ptr<state_type> of) noexcept : of_(std::move(of)) {}

  [[nodiscard]] const std::shared_ptr<state_type>& state() const noexcept { return of_; }
  /// Whether the stream is captured now.
  [[nodiscard]] bool under_way() const noexcept { return under_way_; }
  void fork(state_type& from, where at) {
    under_way_ = true;
    of_->begin_capture();
    first_ = of_->last_place() + 1;
    from.let_wait(*of_, from.record(at), at);
  }
  [[nodiscard]] captured_places join(const state_type& with, where at) {
    of_->let_wait(with, of_->record(at), at);
    return {first_, of_->last_place()};
  }
  /// The capture is over; with null nothing came of it, and its places are of the queue's present end.
  void end_capture(const std::shared_ptr<captured_work>& made) noexcept {
    if (!std::exchange(under_way_, false)) return;
    of_->end_capture();
    try {
      if (made == nullptr) of_->renew(first_, of_->last_place(), {});
    } catch (const backend_error& thrown) {
      of_->fail(thrown);
    }
  }

 private:
  std::shared_ptr<state_type> of_;
  std::uint64_t first_ = 1;
  bool under_way_ = false;
};

/// A forked stream's part of one graph.
template <device_api Api>
class forked_member final : public captured_member<Api> {
 public:
  using state_type = stream_state<Api>;

  /// `kept` lives as long as the graph.
  forked_member(std::shared_ptr<state_type> of, captured_places places, std::vector<std::shared_ptr<const void>> kept)
      : of_(std::move(of)), places_(places), kept_(std::move(kept)) {}
  void before_launch(const std::shared_ptr<state_type>& on, where at) override {
    of_->let_wait(*on, of_->record(at), at);
  }
  void after_launch(const std::shared_ptr<state_type>& on, where at) override {
    on->let_wait(*of_, on->record(at), at);
    if (std::exchange(first_, false)) of_->renew(places_.first, places_.last, at);
  }

 private:
  std::shared_ptr<state_type> of_;
  captured_places places_;
  std::vector<std::shared_ptr<const void>> kept_;
  bool first_ = true;
};

/// A whole stream of a rank, such as that of its copies, for as long as this lives.
template <device_api Api>
class forked_stream final : public captured_branch<Api> {
 public:
  using state_type = stream_state<Api>;

  explicit forked_stream(std::shared_ptr<state_type> of) : fork_(std::move(of)) {
    fork_.state()->on().add_branch(*this);
  }
  forked_stream(const forked_stream&) = delete;  // the device points to it
  forked_stream& operator=(const forked_stream&) = delete;
  ~forked_stream() { fork_.state()->on().remove_branch(*this); }

  void prepare(where at) override { fork_.state()->synchronize(at); }  // nobody asks for its events then
  void fork(state_type& on, where at) override { fork_.fork(on, at); }
  [[nodiscard]] std::shared_ptr<captured_member<Api>> join(state_type& on, where at) override {
    return std::make_shared<forked_member<Api>>(fork_.state(), fork_.join(on, at),
                                                std::vector<std::shared_ptr<const void>>());
  }
  void end_capture(const std::shared_ptr<captured_work>& made) noexcept override { fork_.end_capture(made); }

 private:
  captured_fork<Api> fork_;
};

/// The ends of communications that were started while a stream was captured. They stand for the graph's launches, and
/// nobody can wait for one before the first.
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
