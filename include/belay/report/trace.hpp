// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The spans of all ranks as one Chrome trace, which Perfetto opens: a process a rank, and in it a lane for the rank's
// thread and one for each of its streams. Ranks write their own text and send it to rank 0, which alone has the file.
//
//   belay::trace_file file("trace.json");                        // on rank 0, before training: refused here
//   belay::trace_merge merge(control, "pp=0 ep=1", room);
//   ...                                                          // steps 2 to 4 with a span_log
//   merge.write(control, log, rank == 0 ? &file : nullptr);      // when all that they have started is over
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/report/output.hpp"
#include "belay/report/text_buffer.hpp"

namespace belay::inline BELAY_ABI {

/// At `at` of its own clock a rank is so many nanoseconds behind rank 0, to within `uncertainty`.
struct clock_reading {
  std::int64_t at = 0;           // of the rank's own clock
  std::int64_t behind = 0;       // what is to be added for rank 0's
  std::int64_t uncertainty = 0;  // half of a round trip
};

/// The time of rank 0's clock when a rank's own is `own`, from a reading before and one after.
[[nodiscard]] BELAY_DECL std::int64_t between(const clock_reading& before, const clock_reading& after,
                                              std::int64_t own) noexcept;

/// Equal for processes that read one monotonic clock: of one boot, and one namespace of times.
[[nodiscard]] BELAY_DECL std::uint64_t this_machine();

/// A rank's clock beside that of rank 0. Ranks of one machine have one clock. Between machines a time is asked for and
/// comes back, several times: of the shortest of these round trips the middle is when rank 0 has read its clock, to
/// within half of it (D. L. Mills, RFC 5905, section 8). That is done at the start and at the end, and what is between
/// is interpolated, because clocks of two machines drift apart.
template <clock_policy Clock = monotonic_clock>
class rank_clock {
 public:
  static constexpr int round_trips = 16;  // of a reading

  /// Collective over `control`. Ranks with the `machine` of rank 0 have its clock.
  template <class Group>
  explicit rank_clock(const Group& control, std::uint64_t machine = this_machine(), Clock clock = {})
      : clock_(clock), machines_(static_cast<std::size_t>(control.size())) {
    control.all_gather(std::span<const std::uint64_t>(&machine, 1), std::span<std::uint64_t>(machines_));
    start_ = end_ = read(control);
  }
  /// The end of what is asked for. Collective; allocates nothing.
  template <class Group>
  void read_again(const Group& control) {
    end_ = read(control);
  }

  /// A time of the rank's own clock as rank 0 has it.
  [[nodiscard]] std::int64_t of_rank_0(std::int64_t own) const noexcept { return between(start_, end_, own); }
  /// Whether all ranks read the clock of rank 0.
  [[nodiscard]] bool shared() const noexcept {
    return std::all_of(machines_.begin(), machines_.end(), [this](std::uint64_t each) { return each == machines_[0]; });
  }
  /// Nanoseconds; 0 where it is rank 0's own clock.
  [[nodiscard]] std::int64_t uncertainty() const noexcept { return greater_of(start_.uncertainty, end_.uncertainty); }

 private:
  [[nodiscard]] bool elsewhere(std::size_t rank) const noexcept { return machines_[rank] != machines_[0]; }

  template <class Group>
  [[nodiscard]] clock_reading read(const Group& control) {
    const auto own = static_cast<std::size_t>(control.rank());
    clock_reading best;
    if (own == 0) {
      for (std::size_t rank = 1; rank < machines_.size(); ++rank)
        if (elsewhere(rank)) answer(control, static_cast<int>(rank));
    } else if (elsewhere(own)) {
      for (int trip = 0; trip < round_trips; ++trip) {
        std::int64_t there = 0;
        const std::int64_t sent = clock_.now();
        control.send(0, std::span<const std::int64_t>(&sent, 1));
        control.receive(0, std::span<std::int64_t>(&there, 1));
        const std::int64_t back = clock_.now();
        const std::int64_t half = (back - sent) / 2;
        if (trip == 0 || half < best.uncertainty) best = {sent + half, there - (sent + half), half};
      }
    }
    return best;
  }
  template <class Group>
  void answer(const Group& control, int rank) {
    for (int trip = 0; trip < round_trips; ++trip) {
      std::int64_t asked = 0;
      control.receive(rank, std::span<std::int64_t>(&asked, 1));
      const std::int64_t now = clock_.now();
      control.send(rank, std::span<const std::int64_t>(&now, 1));
    }
  }

  [[no_unique_address]] Clock clock_;
  std::vector<std::uint64_t> machines_;  // by rank
  clock_reading start_, end_;
};

/// The steps of a trace, both included.
struct traced_steps {
  std::uint64_t first = 2;  // from 1
  std::uint64_t last = 4;   // included
  /// Whether `step` is one of them.
  [[nodiscard]] constexpr bool has(std::uint64_t step) const noexcept { return first <= step && step <= last; }
};

/// One rank's spans as events of a trace, in pieces.
class trace_text {
 public:
  using clock_type = rank_clock<>;
  /// Whether arrows go from sends to their receives. Of a run that has failed there are none, and what was under way
  /// is a span without an end.
  enum class flows : std::uint8_t { left_out, paired, of_failed_run };

  /// Of rank `rank`, which `label` describes. Times are from `base` of rank 0's clock. All of it outlives the text.
  trace_text(std::span<const traced_span> spans, std::size_t rank, std::string_view label, const clock_type& clock,
             std::int64_t base, flows which) noexcept
      : spans_(spans), rank_(rank), label_(label), clock_(&clock), base_(base), flows_(which) {}

  /// Fills `room`, of `least_room` characters or more, with the next events, each after a comma; empty after the last.
  static constexpr std::size_t least_room = 8192;
  [[nodiscard]] std::string_view next(std::span<char> room);

 private:
  static constexpr std::size_t most_event = 4000;
  static constexpr std::size_t most_name = 200;
  static constexpr std::size_t heads = 2 + 2 * span_lanes;  // events that name the lanes

  [[nodiscard]] std::string_view next_event();

  [[nodiscard]] std::string_view put_head(std::size_t which);

  [[nodiscard]] std::string_view put_span(const traced_span& each);
  [[nodiscard]] std::string_view put_counter(const traced_span& each);
  // Both sides find the same name: ranks, tag, which of the traced steps, and how many of that name were before.
  [[nodiscard]] std::string_view put_flow(std::size_t number);

  void begin_event(std::string_view name, std::string_view category, std::string_view type, span_lane lane,
                   std::int64_t begin);
  [[nodiscard]] std::string_view finish();
  template <class... Values>
  [[nodiscard]] static std::string_view printed(std::span<char> room, const char* format, const Values&... values) {
    const int size = std::snprintf(room.data(), room.size(), format, values...);
    return {room.data(), lesser_of(static_cast<std::size_t>(greater_of(size, 0)), room.size() - 1)};
  }
  [[nodiscard]] static double microseconds(std::int64_t nanoseconds) noexcept {
    return static_cast<double>(nanoseconds) / 1000.0;
  }

  std::span<const traced_span> spans_;
  std::size_t rank_;
  std::string_view label_;
  const clock_type* clock_;
  std::int64_t base_;
  flows flows_;
  std::size_t head_ = 0, at_ = 0, owner_ = 0, of_step_ = 0, attempt_ = 0;
  char room_[most_event];
  json_line line_{room_};
};

/// The file of a trace. What fails after it was opened is kept for `take_problem`, and nothing more is written.
class trace_file {
 public:
  /// Creates the file, or empties it. Throws file_error, also where a disk is full.
  explicit trace_file(std::string path, where at = where::current());
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  /// A piece of the text.
  void write(std::string_view text) noexcept;
  /// The last piece: nothing follows it, not even a failure.
  void finish(std::string_view text) noexcept;
  /// A trace of a run that has failed before there was one: why, and what a rank has in `events`, which may be null.
  /// Ranks that share the file add theirs one after another, from any thread; after a whole trace it is nothing.
  void fail(std::string_view why, trace_text* events = nullptr) noexcept;
  /// The text that ends the array of events, and the file.
  static constexpr std::string_view end = "\n]}\n";

  /// Why it is not complete, once.
  [[nodiscard]] std::optional<file_error> take_problem() noexcept { return std::exchange(problem_, std::nullopt); }

 private:
  template <class Action>
  void attempt(Action&& action) noexcept {
    if (broken_) return;
    try {
      action();
    } catch (const file_error& problem) {
      problem_ = problem;
      broken_ = true;
    }
  }

  output to_;
  std::optional<file_error> problem_;
  std::mutex failing_;
  bool whole_ = false, failed_run_ = false, any_event_ = false;
  bool broken_ = false;  // nothing more is written
};

/// Made by all ranks, before the first traced step.
class trace_merge {
 public:
  /// The pieces of text that ranks send.
  static constexpr std::size_t room_bytes = std::size_t{1} << 16U;

  /// `control` has all ranks, and `label` says which of them this is. `room`, of `room_bytes` or more, outlives it.
  /// Collective.
  template <class Group>
  trace_merge(const Group& control, std::string label, std::span<char> room)
      : label_(std::move(label)),
        room_(room),
        clock_(control),
        totals_(static_cast<std::size_t>(control.size())),
        uncertainty_(totals_.size()) {}

  /// Of a run that has failed: adds what this rank, number `rank`, has done until then to `file`, which ranks may
  /// share. Not collective, and waits for nothing.
  void fail(std::string_view why, std::size_t rank, const span_log& log, trace_file& file) const noexcept;

  /// Writes what all ranks have in their logs to `file`, which rank 0 has, and the others do not. All that was started
  /// with a log is over. Collective over `control`, whose calls are not traced meanwhile; allocates nothing.
  template <class Group>
  void write(const Group& control, const span_log& log, trace_file* file) {
    clock_.read_again(control);
    const totals own = totals_of(log);
    control.all_gather(std::span<const totals>(&own, 1), std::span<totals>(totals_));
    std::int64_t base = largest_value<std::int64_t>;
    std::uint64_t forgotten = 0;
    for (const totals& each : totals_) {
      base = lesser_of(base, each.begin);
      forgotten += each.forgotten;
    }
    if (file != nullptr) begin(*file, log);
    const auto which = forgotten > 0 ? trace_text::flows::left_out : trace_text::flows::paired;
    trace_text text(log.spans(), static_cast<std::size_t>(control.rank()), label_, clock_, base, which);
    if (control.rank() == 0) {
      bool first = true;
      for (std::string_view piece = text.next(room_); !piece.empty(); piece = text.next(room_)) {
        if (std::exchange(first, false)) piece.remove_prefix(1);  // the comma
        if (file != nullptr) file->write(piece);
      }
      for (int rank = 1; rank < control.size(); ++rank) receive(control, rank, file);
      if (file != nullptr) file->finish(trace_file::end);
    } else {
      std::uint64_t bytes = 0;
      do {
        const std::string_view piece = text.next(room_);
        bytes = piece.size();
        control.send(0, std::span<const std::uint64_t>(&bytes, 1));
        if (bytes > 0) control.send(0, std::span<const char>(piece));
      } while (bytes > 0);
    }
  }

 private:
  struct totals {
    std::int64_t begin = largest_value<std::int64_t>;  // of rank 0's clock
    std::int64_t uncertainty = 0;
    std::uint64_t forgotten = 0;
    std::uint64_t unfinished = 0;
  };

  [[nodiscard]] totals totals_of(const span_log& log) const noexcept;
  void begin(trace_file& file, const span_log& log);
  // Those that rank 0 has begun, which may be fewer than were asked for.
  void put_steps(json_line& line, const span_log& log) const;
  template <class Group>
  void receive(const Group& control, int rank, trace_file* file) {
    for (;;) {
      std::uint64_t bytes = 0;
      control.receive(rank, std::span<std::uint64_t>(&bytes, 1));
      if (bytes == 0) return;
      const std::span<char> piece = room_.first(static_cast<std::size_t>(bytes));
      control.receive(rank, piece);
      if (file != nullptr) file->write({piece.data(), piece.size()});
    }
  }

  std::string label_;
  std::span<char> room_;
  rank_clock<> clock_;
  std::vector<totals> totals_;  // by rank
  std::vector<double> uncertainty_;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/report/trace.ipp"  // IWYU pragma: export
#endif
