// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Spans of what a stream runs: their times are written in its order, by the thread that runs its work.
// IWYU pragma: private, include "belay/device.hpp"
#pragma once

#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"

namespace belay::inline BELAY_ABI {

[[nodiscard]] constexpr span_lane lane_of(stream_kind which) noexcept {
  return which == stream_kind::compute         ? span_lane::compute
         : which == stream_kind::communication ? span_lane::communication
                                               : span_lane::copy;
}

/// The name of a span of a wait for a stream of kind `of`.
[[nodiscard]] constexpr const char* wait_name(stream_kind of) noexcept {
  switch (of) {
    case stream_kind::compute: return "wait for compute";
    case stream_kind::communication: return "wait for communication";
    case stream_kind::copy: return "wait for copy";
  }
  return "wait";
}

/// A wait in `lane` for `mark`: null without a log, and where nobody has to wait.
[[nodiscard]] inline traced_span* add_wait(span_log* to, span_lane lane, const stream_event& mark, const where& at) {
  if (to == nullptr || mark.ready()) return nullptr;
  return to->add({.name = wait_name(mark.source()->kind()),
                  .file = at.file,
                  .line = static_cast<std::uint32_t>(at.line),
                  .kind = span_kind::wait,
                  .lane = lane});
}

/// A stream that times its spans itself, because what it runs cannot write to the host's memory.
template <class S>
concept span_timing_stream = requires(S& stream, traced_span* of) {
  stream.begin_span(of);
  stream.end_span(of);
};

/// Lasts in the order of `stream` from what it has been given before to what it has been given when this goes. The
/// stream of a device that times no spans has none: it does not run the host's clock.
template <class Stream>
class queued_span {
 public:
  queued_span(Stream& stream, traced_span* of) : stream_(&stream), of_(of) {
    if (of_ == nullptr) return;
    if constexpr (span_timing_stream<Stream>)
      stream_->begin_span(of);
    else if constexpr (!device_stream<Stream>)
      stream_->run([of] { of->begin_at(span_log::now()); });
  }
  queued_span(const queued_span&) = delete;
  queued_span& operator=(const queued_span&) = delete;
  ~queued_span() {
    if (of_ == nullptr) return;
    try {
      if constexpr (span_timing_stream<Stream>)
        stream_->end_span(of_);
      else if constexpr (!device_stream<Stream>)
        stream_->run([of = of_] { of->end_at(span_log::now()); });
    } catch (...) {  // a stream that is stuck says so to whoever queues next; this span is not over
      return;
    }
  }

 private:
  Stream* stream_;
  traced_span* of_;
};

}  // namespace belay::inline BELAY_ABI
