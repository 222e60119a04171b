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

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda/captured_fork.hpp"
#include "belay/backend/cuda/graph.hpp"
#include "belay/backend/cuda/stream.hpp"
#include "belay/backend/cuda/stream_state.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/pending.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// One operation of a rank over NCCL, or a launch of a graph that has some, as messages name it.
struct started_call {
  call_site site;                             ///< of a graph: of the first operation in it, with the bytes of all
  std::chrono::steady_clock::duration limit;  ///< how long it may take
  std::size_t in_graph = 0;                   ///< how many operations the graph has; 0: it is no launch of one

  /// "all_reduce #3", or "a graph of 7 operations, the first of which is all_reduce #3".
  [[nodiscard]] std::string text() const {
    if (in_graph == 0) return site.text();
    return "a graph of " + std::to_string(in_graph) + (in_graph == 1 ? " operation, " : " operations, the first of ") +
           (in_graph == 1 ? "" : "which is ") + site.text();
  }
};

/// The operations that one graph has.
struct captured_calls {
  started_call all;                               ///< as a launch of the graph is named
  cuda::captured_places places;                   ///< of the communication stream
  std::vector<std::shared_ptr<const void>> kept;  ///< for as long as the graph
};

/// Places that are given out here are those of the communication stream. The rank's host thread captures; any thread
/// ends graphs.
template <cuda::device_api Api>
class captured_operations {
 public:
  using state_type = cuda::stream_state<Api>;

  captured_operations(const cuda::stream<Api>& communication, lost_handles& lost) noexcept
      : fork_(communication.state()), ends_(communication.state(), lost) {}

  /// Whether what is started now is captured.
  [[nodiscard]] bool under_way() const noexcept { return fork_.under_way(); }
  void fork(state_type& from, where at) {
    calls_ = {};
    fork_.fork(from, at);
  }
  /// The operations that the graph has; later work of `with` comes after them.
  [[nodiscard]] captured_calls join(const state_type& with, where at) {
    calls_.places = fork_.join(with, at);
    return std::move(calls_);
  }
  /// The capture is over; with null nothing came of it.
  void end_capture(const std::shared_ptr<cuda::captured_work>& made) noexcept {
    if (!fork_.under_way()) return;
    fork_.end_capture(made);
    if (made != nullptr) add(made);
  }

  /// One that was queued now; `self` owns this.
  [[nodiscard]] pending add(std::shared_ptr<const void> self, const call_site& site,
                            std::chrono::steady_clock::duration limit, const stream_event& end,
                            std::shared_ptr<const void> kept) {
    const std::size_t bytes = calls_.all.site.bytes + site.bytes;
    if (calls_.all.in_graph++ == 0) calls_.all.site = site;
    calls_.all.site.bytes = bytes;
    calls_.all.limit = greater_of(calls_.all.limit, limit);
    if (kept != nullptr) calls_.kept.push_back(std::move(kept));
    std::shared_ptr<completion_source> ends(std::move(self), &ends_);
    return pending(std::move(ends), end.place(), site.what, site.at, end.clock());
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

 private:
  void add(const std::shared_ptr<cuda::captured_work>& made) {
    const std::lock_guard lock(graphs_lock_);
    std::erase_if(graphs_, [](const auto& each) { return each.expired(); });
    graphs_.push_back(made);
  }

  cuda::captured_fork<Api> fork_;
  cuda::captured_ends<Api> ends_;
  captured_calls calls_;
  mutable std::mutex graphs_lock_;
  std::vector<std::weak_ptr<cuda::captured_work>> graphs_;
};

/// Keeps the rank's channel, to which a launch is one operation.
template <cuda::device_api Api, class Channel>
class graph_member final : public cuda::captured_member<Api> {
 public:
  using state_type = cuda::stream_state<Api>;

  graph_member(std::shared_ptr<Channel> of, captured_calls calls) noexcept
      : of_(std::move(of)), calls_(std::move(calls)) {}
  void before_launch(const std::shared_ptr<state_type>& on, where at) override {
    after_ = of_->before_launch(calls_, on, at);
  }
  void after_launch(const std::shared_ptr<state_type>& on, where at) override {
    of_->after_launch(calls_, after_, on, at);
    if (std::exchange(first_, false)) of_->stream().state()->renew(calls_.places.first, calls_.places.last, at);
  }

 private:
  std::shared_ptr<Channel> of_;
  captured_calls calls_;
  stream_event after_;
  bool first_ = true;
};

}  // namespace belay::inline BELAY_ABI::nccl
