// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What every rank did and when, kept in rings of fixed size and written as a Chrome trace, which Perfetto opens. A
// rank writes only its own ring, so recording takes two readings of the clock and no lock. A full ring overwrites its
// oldest events.
//
//   belay::trace trace(ranks);
//   {
//     const belay::trace::duration timed(trace, rank, "forward", "compute", micro_batch);
//     forward();
//   }
//   trace.write("trace.json");  // when no rank records any more
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/report/json_line.hpp"
#include "belay/report/output.hpp"

namespace belay::inline BELAY_ABI {

/// One event of a rank. Names are string literals, or outlive the trace.
struct trace_event {
  /// Of an event without a number.
  static constexpr std::uint64_t no_number = ~std::uint64_t{0};

  /// The name that is shown, its category, and when it ended, in nanoseconds.
  const char* name = "";
  const char* category = "";
  std::uint64_t begin = 0;  // nanoseconds since the trace began
  std::uint64_t end = 0;
  std::uint64_t number = no_number;  // the micro-batch, or another number that distinguishes events of one name
};

class trace {
 public:
  /// Allocates memory for `capacity` events of each of `ranks` ranks; recording allocates nothing.
  explicit trace(std::size_t ranks, std::size_t capacity = 4096)
      : capacity_(capacity == 0 ? 1 : capacity), rings_(ranks), start_(monotonic_clock::now()) {
    for (ring& each : rings_) each.events = std::vector<trace_event>(capacity_);
  }

  /// Nanoseconds since the trace began.
  [[nodiscard]] std::uint64_t now() const noexcept {
    return static_cast<std::uint64_t>(monotonic_clock::now() - start_);
  }

  /// Adds one event of `rank`. Called by that rank's thread only.
  void add(std::size_t rank, const trace_event& event) noexcept {
    if (rank >= rings_.size()) return;  // a rank without a ring is not traced
    ring& own = rings_[rank];
    own.events[own.count % capacity_] = event;
    ++own.count;
  }

  /// Records its own lifetime as one event.
  class duration {
   public:
    /// Notes a span of that rank from here to its end. Name and category are literals.
    duration(trace& to, std::size_t rank, const char* name, const char* category = "",
             std::uint64_t number = trace_event::no_number) noexcept
        : to_(to), rank_(rank), event_{name, category, to.now(), 0, number} {}
    duration(const duration&) = delete;
    duration& operator=(const duration&) = delete;
    ~duration() {
      event_.end = to_.now();
      to_.add(rank_, event_);
    }

   private:
    trace& to_;
    std::size_t rank_;
    trace_event event_;
  };

  /// The number of events of `rank` that were added, and how many of them were overwritten.
  [[nodiscard]] std::uint64_t recorded(std::size_t rank) const { return rings_.at(rank).count; }
  [[nodiscard]] std::uint64_t forgotten(std::size_t rank) const {
    const std::uint64_t count = rings_.at(rank).count;
    return count < capacity_ ? 0 : count - capacity_;
  }

  /// Writes all events in the rings to `path`. The ranks must have stopped recording.
  void write(const std::string& path) const {
    output file(path);
    char room[4096];
    json_line line(room);
    file.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    const char* separator = "";
    const auto put = [&] {
      std::string_view text = line.finish();
      text.remove_suffix(1);  // the newline: commas separate the lines of this file
      const std::string whole = separator + std::string(text);
      file.write(whole);
      separator = ",\n";
      line.begin();
    };
    for (std::size_t rank = 0; rank < rings_.size(); ++rank) {
      const std::string name = "rank " + std::to_string(rank);
      line.field("name", "thread_name").field("ph", "M").field("pid", 0).field("tid", rank);
      line.open_object("args").field("name", name).close();
      put();
      const ring& own = rings_[rank];
      for (std::uint64_t i = forgotten(rank); i < own.count; ++i) {
        const trace_event& event = own.events[i % capacity_];
        line.field("name", event.name).field("cat", event.category).field("ph", "X").field("pid", 0);
        line.field("tid", rank).field("ts", microseconds(event.begin));
        line.field("dur", microseconds(event.end < event.begin ? 0 : event.end - event.begin));
        if (event.number != trace_event::no_number) line.open_object("args").field("number", event.number).close();
        put();
      }
    }
    file.write("\n]}\n");
  }

 private:
  struct alignas(64) ring {  // no two ranks write to one cache line
    std::vector<trace_event> events;
    std::uint64_t count = 0;
  };

  static double microseconds(std::uint64_t nanoseconds) noexcept { return static_cast<double>(nanoseconds) / 1000.0; }

  std::size_t capacity_;
  std::vector<ring> rings_;
  std::int64_t start_;
};

}  // namespace belay::inline BELAY_ABI
