// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An event marks a place in the order of a stream: of a compute stream, a copy stream or a communication stream, all
// alike. Streams and the host wait for it. Where the work before it has failed, who waits gets the first cause.
//
//   const belay::stream_event computed = compute.record();
//   belay::pending sum = group.start_all_reduce(gradients, belay::sum, belay::after(computed));
//   std::move(sum).then(compute);  // later work of `compute` begins when the sum is there
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_clock.hpp"

namespace belay::inline BELAY_ABI {

/// The pace of a stream, for those who wait for it: so they see whether it gets on.
struct stream_pace {
  /// `waits`: for another stream, or for peers, which has a limit of its own.
  enum class activity : std::uint8_t { works, waits };
  activity now = activity::works;
  std::uint64_t done = 0;  // pieces of work that are over
};

/// The progress of a stream, which it shares with its events. Places are counted from 1.
class event_source {
 public:
  /// Whether all work up to `place` is over, done or failed.
  [[nodiscard]] virtual bool over(std::uint64_t place) const noexcept = 0;
  /// Returns true when it is over, false when `deadline` has passed before. Without a deadline
  /// (`time_point::max()`) it is the stream's own that ends the wait, by a `comm_error`.
  [[nodiscard]] virtual bool wait_until(std::uint64_t place, std::chrono::steady_clock::time_point deadline,
                                        where at) const = 0;
  [[nodiscard]] virtual stream_pace pace() const noexcept = 0;
  /// Which stream of its rank it is.
  [[nodiscard]] virtual stream_kind kind() const noexcept { return stream_kind::compute; }
  /// The stream and what it does now, in words.
  [[nodiscard]] virtual std::string text() const = 0;
  /// For a place that is over: throws the first cause where its work has failed, or was skipped after a failure.
  virtual void expect_done(std::uint64_t place, where at) const = 0;

 protected:
  ~event_source() = default;
};

/// A place in a stream's order. A plain handle that may outlive its stream; without a source it is reached from the
/// start. `clock()` says what comes before it in the order of the program.
class stream_event {
 public:
  stream_event() = default;
  /// Of a stream that is asked for it: `place` is its own count.
  stream_event(std::shared_ptr<const event_source> source, std::uint64_t place,
               const stream_clock& clock = stream_clock()) noexcept
      : source_(std::move(source)), place_(place), clock_(clock) {}

  /// True when `synchronize` would not block.
  [[nodiscard]] bool ready() const noexcept { return source_ == nullptr || source_->over(place_); }

  /// Blocks the calling thread until the place is reached. Throws the first cause where the work before it has failed,
  /// and the `comm_error` of a stream that is stuck (device/stream_watch.hpp).
  void synchronize(where at = where::current()) const {
    if (source_ == nullptr) return;
    static_cast<void>(source_->wait_until(place_, largest_value<std::chrono::steady_clock::time_point>, at));
    source_->expect_done(place_, at);
  }
  /// Blocks the calling thread until the place is reached; false where `deadline` has passed before. Throws the first
  /// cause where the work before the place has failed.
  [[nodiscard]] bool synchronize_until(std::chrono::steady_clock::time_point deadline,
                                       where at = where::current()) const {
    if (source_ == nullptr) return true;
    if (!source_->wait_until(place_, deadline, at)) return false;
    source_->expect_done(place_, at);
    return true;
  }

  /// The stream that is asked, or null where it is over.
  [[nodiscard]] const event_source* source() const noexcept { return source_.get(); }
  /// The place in the order of that source.
  [[nodiscard]] std::uint64_t place() const noexcept { return place_; }
  [[nodiscard]] const stream_clock& clock() const noexcept { return clock_; }
  /// This place, with the clock of the stream that has recorded it.
  [[nodiscard]] stream_event at(const stream_clock& clock) && noexcept { return {std::move(source_), place_, clock}; }

 private:
  std::shared_ptr<const event_source> source_;
  std::uint64_t place_ = 0;
  stream_clock clock_;
};

}  // namespace belay::inline BELAY_ABI
