// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank did and when: spans of time, in memory that its caller gives. Engine, streams and groups have a pointer
// to it while a step is traced, and a null pointer else: that is one branch, and no clock is read. The rank's thread
// adds a span when it starts or queues something; whichever thread then runs it writes the times. So no thread waits
// for another, and spans are read when all that was queued is over, or, of a run that has failed, as far as they are. A
// full log forgets what comes later, and counts it.
//
//   belay::span_log log(room);                                                  // of the run's memory
//   const belay::span_timer timed(log.add({.name = "fill_batch", .kind = belay::span_kind::layer}));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/policies.hpp"

namespace belay::inline BELAY_ABI {

/// Whose time it is: that of the rank's own thread, or of one of its streams.
enum class span_lane : std::uint8_t { host, compute, communication, copy };
inline constexpr std::size_t span_lanes = 4;

/// As a trace names the lane.
[[nodiscard]] constexpr const char* name(span_lane which) noexcept {
  switch (which) {
    case span_lane::host: return "host";
    case span_lane::compute: return "compute";
    case span_lane::communication: return "communication";
    case span_lane::copy: return "copy";
  }
  return "unknown";
}

/// The subject of a span. `action`: of a pipeline's row; `update`: of an optimizer. `send` and `receive` have no times:
/// they belong to the span of the communication before them. `memory` is a number of bytes from then on.
enum class span_kind : std::uint8_t { step, action, layer, update, communication, copy, wait, send, receive, memory };

/// As a trace names the category.
[[nodiscard]] constexpr const char* name(span_kind which) noexcept {
  switch (which) {
    case span_kind::step: return "step";
    case span_kind::action: return "action";
    case span_kind::layer: return "layer";
    case span_kind::update: return "update";
    case span_kind::communication: return "communication";
    case span_kind::copy: return "copy";
    case span_kind::wait: return "wait";
    case span_kind::send: return "send";
    case span_kind::receive: return "receive";
    case span_kind::memory: return "memory";
  }
  return "unknown";
}

/// Texts are string literals, or outlive the log. What does not apply is left as it is.
struct traced_span {
  static constexpr std::uint32_t none = ~std::uint32_t{0};  // a number that does not apply

  const char* name = "";              // of a layer, an operation, a tier
  const char* call = "";              // of a layer: what it was called for
  const char* file = "";              // where it was started, with `line`
  std::int64_t begin = 0;             // nanoseconds of `monotonic_clock`; 0: it has not begun
  std::int64_t end = 0;               // 0: it is not over
  std::uint64_t bytes = 0;            // moved, or leased
  std::uint64_t group = 0;            // which ranks communicate: the same number on each of them
  std::uint32_t line = 0;             // of `file`
  std::uint32_t layer = none;         // its place in its model
  std::uint32_t micro_batch = none;   // of a layer or action
  std::uint32_t number = none;        // of a step; the tag of a send or receive
  std::uint32_t peer = none;          // of a send or receive, a rank of the world
  span_kind kind = span_kind::layer;  // what it is of
  span_lane lane = span_lane::host;   // whose time it is

  /// Writes a time, by whichever thread runs it, for another that may look meanwhile.
  void begin_at(std::int64_t now) noexcept { __atomic_store_n(&begin, now, __ATOMIC_RELEASE); }
  void end_at(std::int64_t now) noexcept { __atomic_store_n(&end, now, __ATOMIC_RELEASE); }
  /// Whether it has begun; whether it is over, too.
  [[nodiscard]] bool begun() const noexcept { return __atomic_load_n(&begin, __ATOMIC_ACQUIRE) != 0; }
  [[nodiscard]] bool over() const noexcept { return __atomic_load_n(&end, __ATOMIC_ACQUIRE) != 0 && begun(); }
};

/// The spans of a rank.
class span_log {
 public:
  /// `room` outlives the log and all that was started while it was given.
  explicit span_log(std::span<traced_span> room) noexcept : room_(room) {}
  span_log(const span_log&) = delete;  // spans that are not over point into its room
  span_log& operator=(const span_log&) = delete;

  /// Adds a span, whose times are still to be written; null where there is no room, which is counted. By the rank's
  /// thread.
  [[nodiscard]] traced_span* add(const traced_span& what) noexcept {
    if (count_ == room_.size()) {
      ++forgotten_;
      return nullptr;
    }
    traced_span& out = room_[count_++];
    out = what;
    return &out;
  }
  /// Forgets all, when all that was started is over.
  void clear() noexcept { count_ = 0, forgotten_ = 0; }

  /// In the order in which they were added.
  [[nodiscard]] std::span<const traced_span> spans() const noexcept { return room_.first(count_); }
  [[nodiscard]] std::uint64_t forgotten() const noexcept { return forgotten_; }
  /// The clock of all times.
  [[nodiscard]] static std::int64_t now() noexcept { return monotonic_clock::now(); }

 private:
  std::span<traced_span> room_;
  std::size_t count_ = 0;
  std::uint64_t forgotten_ = 0;
};

/// Its own lifetime is the time of a span. Without one it does nothing.
class span_timer {
 public:
  /// Begins `of`, or nothing where it is null.
  explicit span_timer(traced_span* of) noexcept : of_(of) {
    if (of_ != nullptr) [[unlikely]]
      of_->begin_at(span_log::now());
  }
  span_timer(const span_timer&) = delete;
  span_timer& operator=(const span_timer&) = delete;
  ~span_timer() {
    if (of_ != nullptr) [[unlikely]]
      of_->end_at(span_log::now());
  }

 private:
  traced_span* of_;
};

}  // namespace belay::inline BELAY_ABI
