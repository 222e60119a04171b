// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The events of a trace as text, and the file that they are written to.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "belay/core/hash.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/report/trace.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string_view trace_text::next(std::span<char> room) {
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

BELAY_DECL std::string_view trace_text::next_event() {
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

BELAY_DECL std::string_view trace_text::put_head(std::size_t which) {
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

BELAY_DECL std::string_view trace_text::put_span(const traced_span& each) {
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

BELAY_DECL std::string_view trace_text::put_counter(const traced_span& each) {
  char text[most_name];
  begin_event(printed(text, "live bytes, %s", each.name), belay::name(each.kind), "C", each.lane, each.begin);
  line_.open_object("args").field("bytes", each.bytes).close();
  return finish();
}

BELAY_DECL std::string_view trace_text::put_flow(std::size_t number) {
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

BELAY_DECL void trace_text::begin_event(std::string_view name, std::string_view category, std::string_view type,
                                        span_lane lane, std::int64_t begin) {
  line_.begin();
  line_.field("name", name).field("cat", category).field("ph", type).field("pid", rank_);
  line_.field("tid", static_cast<unsigned>(lane)).field("ts", microseconds(clock_->of_rank_0(begin) - base_));
}

BELAY_DECL std::string_view trace_text::finish() {
  std::string_view out = line_.finish();
  out.remove_suffix(1);  // the newline
  return out;
}

BELAY_DECL trace_file::trace_file(std::string path, where at) : to_(std::move(path), at) {
  to_.expect_room(std::size_t{1} << 16U, at);
}

BELAY_DECL void trace_file::write(std::string_view text) noexcept {
  attempt([&] { to_.write(text); });
}

BELAY_DECL void trace_file::finish(std::string_view text) noexcept {
  write(text);
  whole_ = true;
}

BELAY_DECL void trace_file::fail(std::string_view why, trace_text* events) noexcept {
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

BELAY_DECL void trace_merge::fail(std::string_view why, std::size_t rank, const span_log& log,
                                  trace_file& file) const noexcept {
  trace_text text(log.spans(), rank, label_, clock_, 0, trace_text::flows::of_failed_run);
  file.fail(why, &text);
}

BELAY_DECL auto trace_merge::totals_of(const span_log& log) const noexcept -> totals {
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

BELAY_DECL void trace_merge::begin(trace_file& file, const span_log& log) {
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

BELAY_DECL void trace_merge::put_steps(json_line& line, const span_log& log) const {
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

BELAY_DECL std::int64_t between(const clock_reading& before, const clock_reading& after, std::int64_t own) noexcept {
  if (after.at <= before.at) return own + before.behind;
  const double along =
      std::clamp(static_cast<double>(own - before.at) / static_cast<double>(after.at - before.at), 0.0, 1.0);
  return own + before.behind + static_cast<std::int64_t>(along * static_cast<double>(after.behind - before.behind));
}

BELAY_DECL std::uint64_t this_machine() {
  fnv1a out;
  char text[256];
  const unique_fd boot(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t read = boot ? ::read(boot.get(), text, sizeof text) : 0;
  if (read > 0) out.add_text({text, static_cast<std::size_t>(read)});
  const ssize_t linked = ::readlink("/proc/self/ns/time", text, sizeof text);
  if (linked > 0) out.add_text({text, static_cast<std::size_t>(linked)});
  return out.value();
}

}  // namespace belay::inline BELAY_ABI
