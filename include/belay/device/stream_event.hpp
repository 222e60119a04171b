// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An event marks a place in the order of a stream: of a compute stream, a copy stream or a communication stream, all
// alike. Streams and the host wait for it. Where the work before it has failed, who waits gets the first cause.
//
// An event also says what the work behind it comes after, in the order of the program: a place in each stream of the
// rank. Nobody asks whether an event is ready. So the answer is the same under every stream policy and in a rehearsal,
// and memory that goes from one stream to another goes at the same call.
//
//   const belay::stream_event computed = compute.record();
//   belay::pending sum = group.start_all_reduce(gradients, belay::sum, belay::after(computed));
//   std::move(sum).then(compute);  // later work of `compute` begins when the sum is there
//
//   const belay::stream_clock released = *compute.clock();  // what used the range so far
//   copies.wait(compute.record());                          // later copies come after it
//   if (copies.clock()->covers(released)) {}                // so they may have the range
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The streams of one rank. An arbiter with seed 0 lets copies run last.
enum class stream_kind : std::uint8_t { compute, communication, copy };
inline constexpr std::size_t stream_kinds = 3;

/// The name: "compute", "communication", "copy".
[[nodiscard]] constexpr const char* name(stream_kind which) noexcept {
  switch (which) {
    case stream_kind::compute: return "compute";
    case stream_kind::communication: return "communication";
    case stream_kind::copy: return "copy";
  }
  return "unknown";
}

/// A vector clock. Places of a stream are counted from 1, by the events that it records: what is queued between two of
/// them has one place. 0 is before all work.
class stream_clock {
 public:
  /// Comes after nothing.
  constexpr stream_clock() noexcept = default;
  /// Comes after whatever was queued up to `place` of one stream.
  constexpr stream_clock(stream_kind of, std::uint64_t place) noexcept {
    places_[static_cast<std::size_t>(of)] = place;
  }
  /// The clock of a use whose end has no event: nobody can come after it yet.
  [[nodiscard]] static constexpr stream_clock unknown() noexcept {
    stream_clock out;
    out.places_.fill(latest);
    return out;
  }

  /// The place that is known of that kind of stream; a later one.
  [[nodiscard]] constexpr std::uint64_t place(stream_kind of) const noexcept {
    return places_[static_cast<std::size_t>(of)];
  }
  constexpr void set(stream_kind of, std::uint64_t place) noexcept { places_[static_cast<std::size_t>(of)] = place; }
  /// Comes after what `other` comes after, too.
  constexpr void join(const stream_clock& other) noexcept {
    for (std::size_t i = 0; i < stream_kinds; ++i)
      places_[i] = places_[i] < other.places_[i] ? other.places_[i] : places_[i];
  }
  /// Whether what is queued by this clock comes after all that `used` says.
  [[nodiscard]] constexpr bool covers(const stream_clock& used) const noexcept {
    bool out = true;
    for (std::size_t i = 0; i < stream_kinds; ++i) out = out && used.places_[i] <= places_[i];
    return out;
  }
  /// This clock for work of the stream `of`, which comes after all that `of` has got before.
  [[nodiscard]] constexpr stream_clock within(stream_kind of) const noexcept {
    stream_clock out = *this;
    out.places_[static_cast<std::size_t>(of)] = latest;
    return out;
  }
  /// For the stream `of`, whose clock it is: an event that marks what it has got so far. What it gets later has the
  /// next place.
  [[nodiscard]] constexpr stream_clock mark(stream_kind of) noexcept {
    const stream_clock out = *this;
    ++places_[static_cast<std::size_t>(of)];
    return out;
  }

  [[nodiscard]] constexpr bool operator==(const stream_clock&) const noexcept = default;

 private:
  static constexpr std::uint64_t latest = largest_value<std::uint64_t>;
  std::array<std::uint64_t, stream_kinds> places_{};
};

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
