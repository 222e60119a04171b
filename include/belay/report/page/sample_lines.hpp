// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Samples as lines of JSON, and back. A line is a sample, an evaluation, a mark, or the shape of what follows: a run
// that goes on with other ranks or purposes keeps the curves of the lines before, not their bytes.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

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
#include "belay/core/where.hpp"
#include "belay/report/json_line.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/sample.hpp"
#include "belay/train/safetensors/scanner.hpp"

namespace belay::inline BELAY_ABI {

/// The content of a line. `sample` points into the reader until its next line.
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
  // What has another shape is left out.
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
