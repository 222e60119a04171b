// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a rank starts over NCCL while a stream of its device is captured. Its communication stream forks from that one
// and joins it again, so that the operations are in the graph. They have no events that could be asked for: a launch of
// the graph is one operation for the watchdog.
//
// NCCL ends no communicator before all graphs that have calls of it have ended: an abort would wait for them. So who
// aborts ends the graphs first, and nobody aborts while a capture is under way.
// IWYU pragma: private, include "belay/backend/nccl.hpp"
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "belay/backend/cuda/captured_branch.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/backend/nccl/started_call.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/lost_handles.hpp"
#include "belay/comm/pending.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// The operations that one graph has.
struct captured_calls {
  started_call all;                               ///< as a launch of the graph is named
  std::uint64_t first_place = 0, last_place = 0;  ///< of the communication stream, in the capture
  std::vector<std::shared_ptr<const void>> kept;  ///< for as long as the graph
};

/// Places that are given out here are those of the communication stream. The rank's host thread captures; any thread
/// ends graphs.
template <cuda::device_api Api>
class captured_operations final : public completion_source, public cuda::device_places<Api> {
 public:
  using state_type = cuda::stream_state<Api>;

  captured_operations(cuda::stream<Api>& communication, lost_handles& lost) noexcept
      : stream_(&communication), lost_(&lost) {}

  /// Whether what is started now is captured.
  [[nodiscard]] bool under_way() const noexcept { return under_way_; }
  void fork(state_type& from, where at) {
    under_way_ = true;
    calls_ = {};
    state().begin_capture();
    calls_.first_place = state().last_place() + 1;
    from.let_wait(state(), from.record(at), at);
  }
  /// What is in the graph.
  [[nodiscard]] captured_calls join(const state_type& with, where at) {
    state().let_wait(with, state().record(at), at);
    calls_.last_place = state().last_place();
    return std::move(calls_);
  }
  /// The capture is over; with null nothing came of it, and its places are of the queue's present end.
  void leave(const std::shared_ptr<cuda::captured_work>& made) noexcept {
    if (!std::exchange(under_way_, false)) return;
    state().end_capture();
    try {
      if (made != nullptr) return add(made);
      state().renew(calls_.first_place, state().last_place(), {});
    } catch (const backend_error& thrown) {
      state().fail(thrown);
    }
  }

  /// One that was queued now.
  [[nodiscard]] pending add(std::shared_ptr<completion_source> self, const call_site& site,
                            std::chrono::steady_clock::duration limit, const stream_event& end,
                            std::shared_ptr<const void> kept) {
    const std::size_t bytes = calls_.all.site.bytes + site.bytes;
    if (calls_.all.in_graph++ == 0) calls_.all.site = site;
    calls_.all.site.bytes = bytes;
    calls_.all.limit = std::max(calls_.all.limit, limit);
    if (kept != nullptr) calls_.kept.push_back(std::move(kept));
    return pending(std::move(self), end.place(), site.what, site.at, end.clock());
  }

  /// Graphs that have operations of the rank and have not ended; ends them.
  [[nodiscard]] std::size_t graphs() const {
    const std::lock_guard lock(graphs_lock_);
    std::size_t live = 0;
    for (const auto& each : graphs_)
      if (const auto graph = each.lock(); graph != nullptr && !graph->ended()) ++live;
    return live;
  }
  void end_graphs() noexcept {
    const std::lock_guard lock(graphs_lock_);
    for (const auto& each : graphs_)
      if (const auto graph = each.lock()) graph->end();
  }

  // As a source of events.
  [[nodiscard]] bool over(std::uint64_t place) const noexcept override { return state().over(place); }
  [[nodiscard]] bool wait_until(std::uint64_t place, std::chrono::steady_clock::time_point deadline,
                                where at) const override {
    return state().wait_until(place, deadline, at);
  }
  void expect_done(std::uint64_t place, where at) const override { state().expect_done(place, at); }
  void let_wait(const state_type& other, std::uint64_t place, where at) const override {
    state().let_wait(other, place, at);
  }
  void wait(std::uint64_t place, operation, where at) override {
    static_cast<void>(wait_until(place, std::chrono::steady_clock::time_point::max(), at));
    expect_done(place, at);
  }
  void hand_to_stream(std::uint64_t, operation, where) override {}
  void abandon(std::uint64_t, where started_at) noexcept override { lost_->note(started_at); }

 private:
  [[nodiscard]] const state_type& state() const noexcept { return *stream_->state(); }
  [[nodiscard]] state_type& state() noexcept { return *stream_->state(); }
  void add(const std::shared_ptr<cuda::captured_work>& made) {
    const std::lock_guard lock(graphs_lock_);
    std::erase_if(graphs_, [](const auto& each) { return each.expired(); });
    graphs_.push_back(made);
  }

  cuda::stream<Api>* stream_;
  lost_handles* lost_;
  bool under_way_ = false;
  captured_calls calls_;
  mutable std::mutex graphs_lock_;
  std::vector<std::weak_ptr<cuda::captured_work>> graphs_;
};

}  // namespace belay::inline BELAY_ABI::nccl
