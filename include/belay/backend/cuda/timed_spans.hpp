// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// When a device has done what its stream was given, for a trace: a pair of timed events a span, and one more whose time
// the host knows too, because it has waited for it. The others' are so long after that one.
// IWYU pragma: private, include "belay/backend/cuda/stream.hpp"
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/device_api.hpp"
#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Of one stream, by the rank's host thread. Made with all its events. Errors are backend_errors.
template <device_api Api>
class timed_spans {
 public:
  static constexpr std::size_t most = 4096;  // spans of a step; what is more has no times

  timed_spans(const device<Api>& on, typename Api::stream_type stream, where at) : device_(&on), stream_(stream) {
    pairs_.reserve(most);
    events_.reserve(2 * most + 1);
    try {
      while (events_.size() < 2 * most + 1) {
        typename Api::event_type made{};
        device_->expect(device_->api().make_timed_event(made), "make_timed_event", 0, at);
        events_.push_back(made);
      }
    } catch (...) {
      destroy();
      throw;
    }
  }
  timed_spans(const timed_spans&) = delete;
  timed_spans& operator=(const timed_spans&) = delete;
  ~timed_spans() { destroy(); }

  /// Times from here on are read from here on: waits for all that is queued.
  void anchor(where at) {
    record(events_.back(), at);
    await(events_.back(), at);
    anchored_ = span_log::now();
  }
  /// Begins the time of `of`, which lasts for the work that is queued until its `end`. Spans nest. In a capture there
  /// is no time yet.
  void begin(traced_span* of, where at) {
    if (of == nullptr || pairs_.size() == most || device_->capturing()) return;
    pairs_.push_back({of, span_state::open});
    record(events_[2 * (pairs_.size() - 1)], at);
  }
  void end(const traced_span* of, where at) {
    if (of == nullptr || device_->capturing()) return;
    for (std::size_t i = pairs_.size(); i-- > 0;) {
      if (pairs_[i].of != of) continue;
      record(events_[2 * i + 1], at);
      pairs_[i].now = span_state::closed;
      return;
    }
  }
  /// Waits for all that is queued, and writes the times.
  void resolve(where at) {
    const std::int64_t from = anchored_;
    typename Api::event_type last = events_.back();
    for (std::size_t i = 0; i < pairs_.size(); ++i)
      if (pairs_[i].now == span_state::closed) await(last = events_[2 * i + 1], at);
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      if (pairs_[i].now != span_state::closed) continue;
      pairs_[i].of->begin_at(from + since_anchor(events_[2 * i], at));
      pairs_[i].of->end_at(from + since_anchor(events_[2 * i + 1], at));
    }
    pairs_.clear();
  }

 private:
  enum class span_state : std::uint8_t { open, closed };
  struct pair {
    traced_span* of;
    span_state now;
  };

  void record(typename Api::event_type which, where at) {
    device_->expect(device_->api().record(which, stream_), "record", 0, at);
  }
  void await(typename Api::event_type which, where at) {
    for (bool reached = false; !reached;)
      device_->expect(device_->api().await(which, std::chrono::milliseconds(100), reached), "await", 0, at);
  }
  [[nodiscard]] std::int64_t since_anchor(typename Api::event_type which, where at) const {
    float milliseconds = 0;
    device_->expect(device_->api().elapsed(events_.back(), which, milliseconds), "elapsed", 0, at);
    return static_cast<std::int64_t>(1e6 * static_cast<double>(milliseconds));
  }
  void destroy() noexcept {
    for (const auto& each : events_) device_->note(device_->api().destroy_event(each), "destroy_event");
  }

  const device<Api>* device_;
  typename Api::stream_type stream_;
  std::vector<typename Api::event_type> events_;  // of each span two, then the anchor
  std::vector<pair> pairs_;
  std::int64_t anchored_ = 0;
};

}  // namespace belay::inline BELAY_ABI::cuda
