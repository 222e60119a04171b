// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The steps of a run in memory of fixed size: curves, bytes and marks, in at most 1,000 buckets. A bucket of several
// steps has their mean, least and most, so that no peak is lost.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"
#include "belay/report/text_buffer.hpp"
#include "belay/train/safetensors/scanner.hpp"

namespace belay::inline BELAY_ABI {

class report_history {
 public:
  static constexpr std::size_t most_points = 1000;  // of a curve; its band of least and most has twice as many
  static constexpr std::size_t most_rows = 64;      // of memory; what is beyond is in the tier's bytes alone
  static constexpr std::size_t most_tiers = 4;

  struct point {
    double sum = 0;
    double least = 0;
    double most = 0;
    std::uint64_t count = 0;

    [[nodiscard]] double mean() const noexcept { return sum / static_cast<double>(count); }
    void add(const point& other) noexcept {
      if (other.count == 0) return;
      least = count == 0 ? other.least : lesser_of(least, other.least);
      most = count == 0 ? other.most : greater_of(most, other.most);
      sum += other.sum;
      count += other.count;
    }
  };

  [[nodiscard]] static constexpr std::size_t room_bytes() noexcept {
    return report_room::bytes<point>(report_curve_count * most_points) +
           report_room::bytes<report_tier>(most_tiers * most_points) +
           report_room::bytes<std::uint64_t>(most_rows * most_points) +
           report_room::bytes<std::uint32_t>(report_mark_count * most_points);
  }

  explicit report_history(report_room& room)
      : buckets_(most_points),
        curves_(room.take<point>(report_curve_count * most_points)),
        tiers_(room.take<report_tier>(most_tiers * most_points)),
        rows_(room.take<std::uint64_t>(most_rows * most_points)),
        marks_(room.take<std::uint32_t>(report_mark_count * most_points)) {}

  /// A value that is no finite number is left out.
  void add(report_curve curve, std::uint64_t step, double value) noexcept {
    if (!is_finite(value)) return;
    const std::size_t bucket = place(step);
    if (bucket == most_points) return;
    trained_ = greater_of(trained_, step);
    of(curve)[bucket].add({value, value, value, 1});
    last_[static_cast<std::size_t>(curve)] = value;
    known_[static_cast<std::size_t>(curve)] = current_[static_cast<std::size_t>(curve)] = true;
  }

  void add(report_mark mark, std::uint64_t step, std::uint64_t count) noexcept {
    if (count == 0) return;
    const std::size_t bucket = place(step);
    if (bucket == most_points) return;
    if (mark != report_mark::refusal) trained_ = greater_of(trained_, step);
    of(mark)[bucket] += static_cast<std::uint32_t>(lesser_of<std::uint64_t>(count, 1U << 20U));
    totals_[static_cast<std::size_t>(mark)] += count;
  }

  /// The run goes on from what has been added: what it measures no more is not current.
  void begin_again() noexcept {
    std::fill_n(current_, report_curve_count, false);
    std::fill_n(current_peaks_, most_tiers, std::uint64_t{0});
    std::fill_n(current_most_, most_tiers, std::uint64_t{0});
  }

  /// Bytes of tier `number` of the subject, and of its rows from `first` on. A bucket keeps the step with most.
  void add_bytes(std::uint64_t step, std::size_t number, const report_tier& bytes, std::size_t first,
                 std::span<const std::uint64_t> rows) noexcept {
    if (number >= most_tiers) return;
    const std::size_t bucket = place(step);
    if (bucket == most_points) return;
    report_tier& kept = tier(number)[bucket];
    kept.peak = greater_of(kept.peak, bytes.peak);
    kept.planned = greater_of(kept.planned, bytes.planned);
    planned_[number] = greater_of(planned_[number], bytes.planned);
    peaks_[number] = greater_of(peaks_[number], bytes.peak);
    current_peaks_[number] = greater_of(current_peaks_[number], bytes.peak);
    current_most_[number] = greater_of(current_most_[number], bytes.most);
    trained_ = greater_of(trained_, step);
    if (bytes.live < kept.live) return;
    kept.live = bytes.live;
    for (std::size_t i = 0; i < rows.size() && first + i < most_rows; ++i) {
      row(first + i)[bucket] = rows[i];
      tier_of_[first + i] = number;
    }
  }

  [[nodiscard]] const step_buckets& buckets() const noexcept { return buckets_; }
  /// The last step that was committed; 0: none was. A refused one has its mark and no more.
  [[nodiscard]] std::uint64_t trained() const noexcept { return trained_; }
  [[nodiscard]] bool has(report_curve curve) const noexcept { return known_[static_cast<std::size_t>(curve)]; }
  /// Whether `last` is of the run as it goes on now, and of none before it.
  [[nodiscard]] bool current(report_curve curve) const noexcept { return current_[static_cast<std::size_t>(curve)]; }
  [[nodiscard]] double last(report_curve curve) const noexcept { return last_[static_cast<std::size_t>(curve)]; }
  [[nodiscard]] std::span<const point> points(report_curve curve) const noexcept {
    return of(curve).first(buckets_.used());
  }
  [[nodiscard]] std::uint64_t total(report_mark mark) const noexcept { return totals_[static_cast<std::size_t>(mark)]; }
  [[nodiscard]] std::span<const std::uint32_t> marks(report_mark mark) const noexcept {
    return of(mark).first(buckets_.used());
  }
  [[nodiscard]] std::uint64_t peak(std::size_t number) const noexcept { return peaks_[number]; }
  [[nodiscard]] std::uint64_t current_peak(std::size_t number) const noexcept { return current_peaks_[number]; }
  /// The largest peak of any rank; 0: not known.
  [[nodiscard]] std::uint64_t current_most(std::size_t number) const noexcept { return current_most_[number]; }
  [[nodiscard]] std::uint64_t planned(std::size_t number) const noexcept { return planned_[number]; }
  [[nodiscard]] std::span<const report_tier> bytes(std::size_t number) const noexcept {
    return tier(number).first(buckets_.used());
  }
  [[nodiscard]] std::span<const std::uint64_t> row_bytes(std::size_t number) const noexcept {
    return row(number).first(buckets_.used());
  }

 private:
  [[nodiscard]] std::size_t place(std::uint64_t step) noexcept {
    return buckets_.place(step, [this] { halve(); });
  }

  [[nodiscard]] std::span<point> of(report_curve curve) const noexcept {
    return curves_.subspan(static_cast<std::size_t>(curve) * most_points, most_points);
  }
  [[nodiscard]] std::span<std::uint32_t> of(report_mark mark) const noexcept {
    return marks_.subspan(static_cast<std::size_t>(mark) * most_points, most_points);
  }
  [[nodiscard]] std::span<report_tier> tier(std::size_t number) const noexcept {
    return tiers_.subspan(number * most_points, most_points);
  }
  [[nodiscard]] std::span<std::uint64_t> row(std::size_t number) const noexcept {
    return rows_.subspan(number * most_points, most_points);
  }

  void halve() noexcept {
    for (std::size_t curve = 0; curve < report_curve_count; ++curve)
      fold(of(static_cast<report_curve>(curve)), [](point& into, const point& other) { into.add(other); });
    for (std::size_t mark = 0; mark < report_mark_count; ++mark)
      fold(of(static_cast<report_mark>(mark)), [](std::uint32_t& into, std::uint32_t other) { into += other; });
    // The rows of a tier are those of the step that it keeps: they add up to its bytes.
    for (std::size_t number = 0; number < most_rows; ++number) {
      const std::span<const report_tier> bytes = tier(tier_of_[number]);
      const std::span<std::uint64_t> kept = row(number);
      for (std::size_t i = 0; i < most_points / 2; ++i)
        kept[i] = kept[bytes[2 * i + 1].live >= bytes[2 * i].live ? 2 * i + 1 : 2 * i];
      std::fill(kept.begin() + most_points / 2, kept.end(), std::uint64_t{0});
    }
    for (std::size_t number = 0; number < most_tiers; ++number)
      fold(tier(number), [](report_tier& into, const report_tier& other) {
        into = {greater_of(into.live, other.live), greater_of(into.peak, other.peak),
                greater_of(into.planned, other.planned)};
      });
  }
  template <class T, class Fold>
  static void fold(std::span<T> all, Fold&& into) noexcept {
    for (std::size_t i = 0; i < most_points / 2; ++i) {
      T folded = all[2 * i];
      into(folded, all[2 * i + 1]);
      all[i] = folded;
    }
    std::fill(all.begin() + most_points / 2, all.end(), T{});
  }

  step_buckets buckets_;
  std::uint64_t trained_ = 0;
  std::span<point> curves_;         // [curve][bucket]
  std::span<report_tier> tiers_;    // [tier][bucket]
  std::span<std::uint64_t> rows_;   // [row][bucket]
  std::span<std::uint32_t> marks_;  // [mark][bucket]
  double last_[report_curve_count] = {};
  bool known_[report_curve_count] = {};
  bool current_[report_curve_count] = {};
  std::uint64_t totals_[report_mark_count] = {};
  std::uint64_t peaks_[most_tiers] = {};
  std::uint64_t current_peaks_[most_tiers] = {};
  std::uint64_t current_most_[most_tiers] = {};
  std::uint64_t planned_[most_tiers] = {};  // the largest
  std::size_t tier_of_[most_rows] = {};
};

/// The content of a line. `sample` points into the reader until its next line.
/// Samples as lines of JSON, and back. A line is a sample, an evaluation, a mark, or the shape of what follows: a run
/// that goes on with other ranks or purposes keeps the curves of the lines before, not their bytes.
struct report_line {
  enum class line_type : std::uint8_t { shape, sample, evaluation, mark } what = line_type::shape;
  report_sample sample;
  double eval_loss = unknown_number;
  report_mark mark = report_mark::replay;
};

/// The line that says which ranks, layers and purposes the samples after it have.
[[nodiscard]] inline std::string shape_line(const report_subject& subject) {
  std::string room(1024 + 64 * subject.memory.size(), ' ');
  for (const report_row& row : subject.memory) room.resize(room.size() + 6 * (row.tier.size() + row.purpose.size()));
  json_line line(room);
  line.field("report", 1).field("ranks", subject.ranks).field("shown_rank", subject.shown_rank);
  line.field("layers", subject.layers).field("experts", subject.experts).open_array("memory");
  for (const report_row& row : subject.memory) line.element_of_array(row.tier + "/" + row.purpose);
  line.close();
  return std::string(line.finish());
}

/// Whether a line has what each expert got: of more than 4,096 experts in all layers it would be most of the file.
[[nodiscard]] constexpr bool writes_experts(view<const std::uint64_t, 2> tokens) noexcept {
  return tokens.extent(0) > 0 && tokens.extent(1) <= 4096 / tokens.extent(0);
}

/// Allocates nothing; valid until the next line in the same room.
[[nodiscard]] inline std::string_view sample_line(std::span<char> room, const report_sample& sample) {
  json_line line(room);
  line.field("step", sample.step);
  for (const sampled_curve& each : sampled_curves) line.field(each.name, sample.*each.value);
  line.field("replays", sample.replays).field("plan_misses", sample.plan_misses);
  std::array<std::uint64_t, report_history::most_tiers> live{}, peak{}, planned{};
  const std::size_t tiers = sample.tiers.size() < live.size() ? sample.tiers.size() : live.size();
  for (std::size_t i = 0; i < tiers; ++i)
    live[i] = sample.tiers[i].live, peak[i] = sample.tiers[i].peak, planned[i] = sample.tiers[i].planned;
  line.array("live_bytes", std::span<const std::uint64_t>(live.data(), tiers));
  line.array("peak_bytes", std::span<const std::uint64_t>(peak.data(), tiers));
  line.array("planned_bytes", std::span<const std::uint64_t>(planned.data(), tiers));
  line.array("live_bytes_by_purpose", sample.live).array("waiting", sample.waiting);
  if (writes_experts(sample.expert_tokens)) {
    line.open_array("expert_tokens");
    for (std::size_t layer = 0; layer < sample.expert_tokens.extent(0); ++layer)
      line.row(std::span<const std::uint64_t>(sample.expert_tokens[layer].flat()));
    line.close();
  }
  return line.finish();
}
[[nodiscard]] inline std::string_view evaluation_line(std::span<char> room, std::uint64_t step, double loss) {
  json_line line(room);
  return line.field("step", step).field("eval_loss", loss).finish();
}
[[nodiscard]] inline std::string_view mark_line(std::span<char> room, std::uint64_t step, report_mark mark) {
  json_line line(room);
  return line.field("step", step).field("mark", name(mark)).finish();
}

/// Reads lines back. For the start of a run: it allocates.
class sample_reader {
 public:
  explicit sample_reader(const report_subject& subject)
      : layers_(subject.layers), experts_(subject.experts), shape_(shape_line(subject)) {
    shape_.pop_back();  // the newline
  }

  /// A line without its newline, which begins at byte `begin` of the file at `path`. Throws file_error.
  [[nodiscard]] report_line read(std::string_view line, const std::string& path, std::uint64_t begin, where at) {
    report_line out;
    if (line.starts_with("{\"report\":")) {
      same_shape_ = line == shape_;
      return out;
    }
    safetensors::header_scanner text(line, path, at, static_cast<std::size_t>(begin));
    clear();
    out.what = report_line::line_type::sample;
    out.sample.step = no_step;
    text.take('{');
    for (bool first = true; !text.take_if('}'); first = false) {
      if (!first) text.take(',');
      const std::size_t where_it_is = text.next();
      const std::string key = text.string(64, "a field");
      text.take(':');
      field(text, key, where_it_is, out);
    }
    text.finish();
    if (out.sample.step == no_step) text.fail(0, "a line has no step");
    finish(out.sample);
    return out;
  }

 private:
  using scanner = safetensors::header_scanner;

  void field(scanner& text, const std::string& key, std::size_t where_it_is, report_line& out) {
    report_sample& sample = out.sample;
    if (key == "step") {
      sample.step = text.integer(most_integer);
    } else if (key == "eval_loss") {
      out.what = report_line::line_type::evaluation;
      out.eval_loss = number(text);
    } else if (key == "mark") {
      out.what = report_line::line_type::mark;
      const std::string which = text.string(64, "a mark");
      for (std::size_t i = 0; i < report_mark_count; ++i)
        if (const auto known = static_cast<report_mark>(i); which == name(known)) {
          out.mark = known;
          return;
        }
      text.fail(where_it_is, "there is no such mark");
    } else if (key == "replays" || key == "plan_misses") {
      (key == "replays" ? sample.replays : sample.plan_misses) = text.integer(most_integer);
    } else if (key == "live_bytes") {
      integers(text, live_);
    } else if (key == "peak_bytes") {
      integers(text, peak_);
    } else if (key == "planned_bytes") {
      integers(text, planned_);
    } else if (key == "live_bytes_by_purpose") {
      integers(text, rows_);
    } else if (key == "waiting") {
      each(text, [&] { waiting_.push_back(number(text)); });
    } else if (key == "expert_tokens") {
      each(text, [&] { integers(text, tokens_); });
    } else {
      for (const sampled_curve& known : sampled_curves)
        if (key == known.name) return static_cast<void>(sample.*known.value = number(text));
      text.skip_value();
    }
  }

  [[nodiscard]] static double number(scanner& text) {
    text.next();
    if (text.peek() != 'n') return text.number();
    text.skip_value();
    return unknown_number;
  }
  template <class Element>
  static void each(scanner& text, Element&& element) {
    text.take('[');
    for (bool first = true; !text.take_if(']'); first = false) {
      if (!first) text.take(',');
      element();
    }
  }
  static void integers(scanner& text, std::vector<std::uint64_t>& to) {
    each(text, [&] { to.push_back(text.integer(most_integer)); });
  }

  void clear() {
    live_.clear(), peak_.clear(), planned_.clear(), rows_.clear(), tokens_.clear(), waiting_.clear(), tiers_.clear();
  }
  // A line of another shape is left out.
  void finish(report_sample& sample) {
    if (!same_shape_) return;
    for (std::size_t i = 0; i < live_.size() && i < peak_.size(); ++i)
      tiers_.push_back({live_[i], peak_[i], i < planned_.size() ? planned_[i] : 0});
    sample.tiers = tiers_, sample.live = rows_, sample.waiting = waiting_;
    if (tokens_.size() == layers_ * experts_) sample.expert_tokens = {tokens_.data(), {layers_, experts_}};
  }

  static constexpr std::uint64_t no_step = largest_value<std::uint64_t>;
  static constexpr std::uint64_t most_integer = largest_value<std::uint64_t> / 16;

  std::size_t layers_;
  std::size_t experts_;
  std::string shape_;
  bool same_shape_ = false;
  std::vector<std::uint64_t> live_, peak_, planned_, rows_, tokens_;
  std::vector<double> waiting_;
  std::vector<report_tier> tiers_;
};

}  // namespace belay::inline BELAY_ABI
