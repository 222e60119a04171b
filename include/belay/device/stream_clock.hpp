// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the work that a stream gets next comes after, in the order of the program: a place in each stream of the rank.
// Nobody asks whether an event is ready. So the answer is the same under every stream policy and in a rehearsal, and
// memory that goes from one stream to another goes at the same call.
//
//   const belay::stream_clock released = *compute.clock();                  // what used the range so far
//   copies.wait(compute.record());                                          // later copies come after it
//   if (copies.clock()->covers(released)) {}                                // so they may have the range
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"

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

}  // namespace belay::inline BELAY_ABI
