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
#include <array>
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
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/report/json_line.hpp"
#include "belay/report/output.hpp"
#include "belay/report/trace_clock.hpp"

namespace belay::inline BELAY_ABI {

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
  [[nodiscard]] std::string_view next(std::span<char> room) {
    std::size_t used = 0;
    while (used + most_event <= room.size()) {
      const std::string_view event = next_event();
      if (event.empty()) break;
      room[used++] = ',';
      room[used++] = '\n';
      std::memcpy(&room[used], event.data(), event.size());
      used += event.size();
    }
    return {room.data(), used};
  }

 private:
  static constexpr std::size_t most_event = 4000;
  static constexpr std::size_t most_name = 200;
  static constexpr std::size_t heads = 2 + 2 * span_lanes;  // events that name the lanes

  [[nodiscard]] std::string_view next_event() {
    if (head_ < heads) return put_head(head_++);
    while (at_ < spans_.size()) {
      const std::size_t number = at_++;
      const traced_span& each = spans_[number];
      if (each.kind == span_kind::step) ++attempt_, of_step_ = number;
      const bool transfer = each.kind == span_kind::send || each.kind == span_kind::receive;
      if (!transfer) owner_ = number;
      if (transfer && flows_ != flows::paired) continue;
      const traced_span& owner = spans_[owner_];
      if (!owner.over() && !(flows_ == flows::of_failed_run && owner.begun())) continue;
      return transfer ? put_flow(number) : each.kind == span_kind::memory ? put_counter(each) : put_span(each);
    }
    return {};
  }

  [[nodiscard]] std::string_view put_head(std::size_t which) {
    line_.begin();
    char text[most_name];
    const bool lane = which >= 2;
    const std::size_t number = (which - 2) / 2;
    const bool name = which % 2 == 0;
    line_.field("name", !lane  ? (name ? "process_name" : "process_sort_index")
                        : name ? "thread_name"
                               : "thread_sort_index");
    line_.field("ph", "M").field("pid", rank_).field("tid", lane ? number : 0).open_object("args");
    if (!name)
      line_.field("sort_index", lane ? number : rank_);
    else if (lane)
      line_.field("name", belay::name(static_cast<span_lane>(number)));
    else
      line_.field("name", printed(text, "rank %zu%s%.*s", rank_, label_.empty() ? "" : ", ",
                                  static_cast<int>(lesser_of<std::size_t>(label_.size(), 100)), label_.data()));
    line_.close();
    return finish();
  }

  [[nodiscard]] std::string_view put_span(const traced_span& each) {
    char text[most_name];
    const bool over = each.over();
    begin_event(each.kind == span_kind::layer
                    ? printed(text, each.call[0] == '\0' ? "%s%s" : "%s %s", each.name, each.call)
                : each.kind == span_kind::step ? printed(text, "step %u", each.number)
                                               : printed(text, "%s", each.name),
                belay::name(each.kind), over ? "X" : "B", each.lane, each.begin);
    if (over) line_.field("dur", microseconds(each.end - each.begin));
    line_.open_object("args");
    if (each.layer != traced_span::none) line_.field("layer", each.layer);
    if (each.micro_batch != traced_span::none) line_.field("micro_batch", each.micro_batch);
    if (each.bytes > 0) line_.field("bytes", each.bytes);
    if (each.kind == span_kind::wait && each.call[0] != '\0') line_.field("of", std::string_view(each.call));
    if (each.file[0] != '\0') {
      const char* const slash = std::strrchr(each.file, '/');
      line_.field("at", printed(text, "%s:%u", slash == nullptr ? each.file : slash + 1, each.line));
    }
    line_.close();
    return finish();
  }
  [[nodiscard]] std::string_view put_counter(const traced_span& each) {
    char text[most_name];
    begin_event(printed(text, "live bytes, %s", each.name), belay::name(each.kind), "C", each.lane, each.begin);
    line_.open_object("args").field("bytes", each.bytes).close();
    return finish();
  }
  // Both sides find the same name: ranks, tag, which of the traced steps, and how many of that name were before.
  [[nodiscard]] std::string_view put_flow(std::size_t number) {
    const traced_span& each = spans_[number];
    const traced_span& owner = spans_[owner_];
    const auto same = [&](const traced_span& other) {
      return other.kind == each.kind && other.peer == each.peer && other.number == each.number &&
             other.group == each.group;
    };
    const auto before = std::count_if(&spans_[of_step_], &each, same);
    const bool sends = each.kind == span_kind::send;
    char text[most_name];
    const std::string_view id = printed(text, "%zu>%zu.%x.%u.%zu.%td", sends ? rank_ : std::size_t{each.peer},
                                        sends ? std::size_t{each.peer} : rank_,
                                        static_cast<unsigned>(each.group & 0xffffffffU), each.number, attempt_, before);
    // Inside of the communication's span, which the arrow begins and ends at.
    begin_event("transfer", "flow", sends ? "s" : "f", owner.lane,
                sends ? owner.begin : greater_of(owner.begin, owner.end - 1));
    line_.field("id", id);
    if (!sends) line_.field("bp", "e");
    return finish();
  }

  void begin_event(std::string_view name, std::string_view category, std::string_view type, span_lane lane,
                   std::int64_t begin) {
    line_.begin();
    line_.field("name", name).field("cat", category).field("ph", type).field("pid", rank_);
    line_.field("tid", static_cast<unsigned>(lane)).field("ts", microseconds(clock_->of_rank_0(begin) - base_));
  }
  [[nodiscard]] std::string_view finish() {
    std::string_view out = line_.finish();
    out.remove_suffix(1);  // the newline
    return out;
  }
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
  explicit trace_file(std::string path, where at = where::current()) : to_(std::move(path), at) {
    to_.expect_room(std::size_t{1} << 16U, at);
  }
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  /// A piece of the text.
  void write(std::string_view text) noexcept {
    attempt([&] { to_.write(text); });
  }
  /// The last piece: nothing follows it, not even a failure.
  void finish(std::string_view text) noexcept {
    write(text);
    whole_ = true;
  }
  /// A trace of a run that has failed before there was one: why, and what a rank has in `events`, which may be null.
  /// Ranks that share the file add theirs one after another, from any thread; after a whole trace it is nothing.
  void fail(std::string_view why, trace_text* events = nullptr) noexcept {
    const std::lock_guard one(failing_);
    if (whole_) return;
    attempt([&] {
      std::array<char, 2 * trace_text::least_room> room;
      const bool first = !std::exchange(failed_run_, true);
      if (first) {
        to_.take_back(to_.written());
        json_line line(room);
        line.field("displayTimeUnit", "ms").open_object("otherData").field("failed", why.substr(0, 1000)).close();
        line.open_array("traceEvents").close();
        std::string_view head = line.finish();
        head.remove_suffix(3);  // what ends array, object and line
        to_.write(head);
      } else {
        to_.take_back(end.size());
      }
      if (events != nullptr)
        for (std::string_view piece = events->next(room); !piece.empty(); piece = events->next(room)) {
          if (!std::exchange(any_event_, true)) piece.remove_prefix(1);  // the comma
          to_.write(piece);
        }
      to_.write(end);
    });
  }
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
  void fail(std::string_view why, std::size_t rank, const span_log& log, trace_file& file) const noexcept {
    trace_text text(log.spans(), rank, label_, clock_, 0, trace_text::flows::of_failed_run);
    file.fail(why, &text);
  }

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

  [[nodiscard]] totals totals_of(const span_log& log) const noexcept {
    totals out;
    out.uncertainty = clock_.uncertainty();
    out.forgotten = log.forgotten();
    for (const traced_span& each : log.spans()) {
      if (each.kind == span_kind::send || each.kind == span_kind::receive) continue;
      if (each.over())
        out.begin = lesser_of(out.begin, clock_.of_rank_0(each.begin));
      else
        ++out.unfinished;
    }
    return out;
  }
  void begin(trace_file& file, const span_log& log) {
    std::uint64_t forgotten = 0, unfinished = 0;
    for (std::size_t rank = 0; rank < totals_.size(); ++rank) {
      forgotten += totals_[rank].forgotten;
      unfinished += totals_[rank].unfinished;
      uncertainty_[rank] = static_cast<double>(totals_[rank].uncertainty) / 1000.0;
    }
    json_line line(room_);
    line.field("displayTimeUnit", "ms").open_object("otherData");
    line.field("ranks", totals_.size());
    put_steps(line, log);
    line.field("forgotten", forgotten).field("unfinished", unfinished);
    line.array("clock_uncertainty_us", std::span<const double>(uncertainty_)).close();
    std::string_view head = line.finish();
    head.remove_suffix(2);  // the brace that ends it, and the newline
    file.write(head);
    file.write(",\"traceEvents\":[");
  }
  // Those that rank 0 has begun, which may be fewer than were asked for.
  void put_steps(json_line& line, const span_log& log) const {
    std::uint64_t first = 0, last = 0;
    for (const traced_span& each : log.spans()) {
      if (each.kind != span_kind::step) continue;
      first = first == 0 ? each.number : first;
      last = each.number;
    }
    if (first == 0)
      line.null_field("first_step").null_field("last_step");
    else
      line.field("first_step", first).field("last_step", last);
  }
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
