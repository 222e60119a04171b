// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A pipeline schedule as a chart: characters for a terminal, or an SVG that needs nothing else for a page. Both show
// the schedule as `timeline_player` plays it, so a gap is the waiting that a run would have.
//
//   const auto table = belay::schedule::one_f_one_b(4, 8);
//   std::puts(belay::schedule::draw_text(table).c_str());
//   belay::output("schedule.svg").write(belay::schedule::draw_svg(table));
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/parallel/schedule/timeline.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// A number with two digits after the point, whatever the locale; for coordinates and percentages.
[[nodiscard]] inline std::string two_digits(double value) {
  const long long hundredths = __builtin_llround(value * 100);
  std::string text = std::to_string(hundredths / 100) + ".";
  text += static_cast<char>('0' + hundredths / 10 % 10);
  text += static_cast<char>('0' + hundredths % 10);
  return text;
}

/// A chunk above the first, in a cell: b, c, ...
[[nodiscard]] inline std::string chunk_letter(std::size_t chunk) {
  return chunk == 0 ? std::string() : std::string(1, static_cast<char>('a' + chunk % 26));
}
/// The parts of a network: "4 stages", or "4 ranks of 2 stages". A row is a stage's, or that of a rank with several.
template <any_table Table>
[[nodiscard]] std::string sizes_of(const Table& table) {
  if (table.chunks() == 1) return std::to_string(table.ranks()) + " stages";
  return std::to_string(table.ranks()) + " ranks of " + std::to_string(table.chunks()) + " stages";
}
template <any_table Table>
[[nodiscard]] std::string label_of(const Table& table) {
  return table.chunks() == 1 ? "stage " : "rank ";
}

/// One line a rank, one column a unit of time: a forward takes one, a backward two (the second shown as "-"), an
/// input or weight gradient one. Chunks above the first have a letter after the number: F3b. Throws usage_error for a
/// table without a proof.
template <any_table Table>
[[nodiscard]] std::string draw_text(const Table& table, where at = where::current()) {
  timeline_player<Table, std::int64_t> player(table, at);
  const std::size_t ranks = table.ranks();
  const std::size_t several = table.chunks() > 1 ? 1 : 0;
  const std::size_t width = 2 + std::to_string(table.micro_batches() - 1).size() + several;  // letter, number, blank
  auto lines = Table::storage::template each_rank<std::string>(ranks);
  auto watch = [&](std::size_t rank, const action& now, std::int64_t begin, std::int64_t end) {
    std::string& line = lines[rank];
    while (line.size() < static_cast<std::size_t>(begin) * width) line += "." + std::string(width - 1, ' ');
    std::string cell = letter_of(now.kind) + std::to_string(now.micro_batch) + chunk_letter(now.chunk);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      cell.resize(width, ' ');
      line += cell;
      cell = "-";
    }
  };
  const std::vector<std::int64_t> forward(table.stages(), 1);
  const std::vector<std::int64_t> backward(table.stages(), 2);
  const auto& played = player.play_watched(forward, backward, watch, at);
  std::string text = printable(table.name());
  text += ": " + sizes_of(table) + ", " + std::to_string(table.micro_batches()) + " micro-batches, " +
          std::to_string(played.total) + " units, idle " + two_digits(100 * played.idle()) + " %\n";
  const std::size_t label = std::to_string(ranks - 1).size();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::string& line = lines[rank];
    while (line.size() < static_cast<std::size_t>(played.total) * width) line += "." + std::string(width - 1, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    std::string number = std::to_string(rank);
    number.insert(0, label - number.size(), ' ');
    text += label_of(table) + number + " | " + line + "\n";
  }
  return text;
}

/// A compute of a chart.
struct chart_box {
  std::size_t rank;  ///< whose row it is in
  action what;       ///< that it runs
  double begin;      ///< in any unit
  double end;        ///< in that unit
};

/// Colours of an SVG, light and dark as the reader's system says. A viewer that knows no such rule shows the light
/// ones.
inline constexpr std::string_view chart_style =
    "<style>.chart rect{stroke:#fff}.chart text{fill:#1b1f24}.chart .paper{fill:#fff;stroke:none}"
    ".chart .idle{fill:#e9ecef}.chart .on{fill:#fff;text-anchor:middle}.forward{fill:#2b6cc4}.backward{fill:#2c8f5b}"
    ".input{fill:#c8437f}.weight{fill:#b88a00}.recompute{fill:#7a9bc9}"
    "@media(prefers-color-scheme:dark){.chart rect{stroke:#1b2026}.chart text{fill:#e8ebee}"
    ".chart .paper{fill:#1b2026}.chart .idle{fill:#2f363e}.chart .on{fill:#121519}.forward{fill:#6aa9f5}"
    ".backward{fill:#5cc48d}.input{fill:#ef82b0}.weight{fill:#d9b13b}.recompute{fill:#8fb3dd}}</style>\n";

/// Draws the computes of a table as an SVG, of `total` in the unit of their times, of which ranks are idle for the
/// share `idle`.
template <any_table Table>
[[nodiscard]] std::string draw_boxes(const Table& table, std::span<const chart_box> boxes, double total, double idle) {
  constexpr double chart = 960;
  constexpr double row = 28;
  constexpr double left = 70;
  constexpr double top = 34;
  const double scale = total > 0 ? chart / total : 0;
  const auto class_of = [](action_kind kind) {
    const std::string words = name(kind);
    return words.substr(0, words.find(' '));
  };

  std::string title;
  for (const char c : printable(table.name())) {
    switch (c) {
      case '&': title += "&amp;"; break;
      case '<': title += "&lt;"; break;
      case '>': title += "&gt;"; break;
      default: title += c;
    }
  }
  title += ": " + sizes_of(table) + ", " + std::to_string(table.micro_batches()) + " micro-batches, idle " +
           two_digits(100 * idle) + " %";
  const std::string wide = two_digits(left + chart + 10);
  const std::string high = two_digits(top + row * static_cast<double>(table.ranks()) + 10);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"" + wide + "\" height=\"" +
                    high + "\" viewBox=\"0 0 " + wide + " " + high +
                    "\" font-family=\"sans-serif\" font-size=\"11\">\n" + std::string(chart_style) +
                    "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n<text x=\"8\" y=\"20\" "
                    "font-size=\"13\">" +
                    title + "</text>\n";
  // The kinds that there are, from the right.
  double key = left + chart;
  for (const action_kind kind :
       {action_kind::weight_gradient, action_kind::input_gradient, action_kind::backward, action_kind::recompute,
        action_kind::forward}) {
    bool any = false;
    for (const chart_box& each : boxes) any = any || each.what.kind == kind;
    if (!any) continue;
    const std::string words = name(kind);
    key -= 26 + 6.2 * static_cast<double>(words.size());
    svg += "<rect class=\"" + class_of(kind) + "\" x=\"" + two_digits(key) +
           "\" y=\"10\" width=\"12\" height=\"12\"/>\n" + "<text x=\"" + two_digits(key + 16) + "\" y=\"20\">" + words +
           "</text>\n";
  }
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    const double y = top + row * static_cast<double>(rank);
    svg += "<text x=\"8\" y=\"" + two_digits(y + 17) + "\">" + label_of(table) + std::to_string(rank) +
           "</text>\n<rect class=\"idle\" x=\"" + two_digits(left) + "\" y=\"" + two_digits(y + 2) + "\" width=\"" +
           two_digits(chart) + "\" height=\"" + two_digits(row - 4) + "\"/>\n";
  }
  // Numbers are as large as their boxes have room for that of the last micro-batch; where that is too small there are
  // none, so that boxes of one width all have them, or none has.
  const auto digits = static_cast<double>(std::to_string(table.micro_batches() - 1).size());
  constexpr double legible = 6;
  for (const chart_box& shown : boxes) {
    const double x = left + scale * shown.begin;
    const double w = scale * (shown.end - shown.begin);
    const double y = top + row * static_cast<double>(shown.rank);
    const std::string number = std::to_string(shown.what.micro_batch);
    svg += "<rect class=\"" + class_of(shown.what.kind) + "\" x=\"" + two_digits(x) + "\" y=\"" + two_digits(y + 2) +
           "\" width=\"" + two_digits(w) + "\" height=\"" + two_digits(row - 4) +
           (shown.what.chunk > 0 ? "\" opacity=\"0.7" : "") + "\"><title>stage " +
           std::to_string(table.stage(shown.rank, shown.what.chunk)) + ", " + name(shown.what.kind) +
           " of micro-batch " + number + "</title></rect>\n";
    const double letters = lesser_of(11.0, (w - 1) / (0.66 * digits));
    if (letters < legible) continue;
    svg += "<text class=\"on\" x=\"" + two_digits(x + w / 2) + "\" y=\"" + two_digits(y + 17) + "\" font-size=\"" +
           two_digits(letters) + "\">" + number + "</text>\n";
  }
  return svg + "</svg>\n";
}

/// The chart as an SVG. `forward` and `backward` are the times of each stage, in any unit. Throws usage_error for a
/// table without a proof, or for times that are not one a stage.
template <any_table Table>
[[nodiscard]] std::string draw_svg(const Table& table, std::span<const double> forward,
                                   std::span<const double> backward, where at = where::current()) {
  std::vector<chart_box> boxes;
  auto watch = [&](std::size_t rank, const action& now, double begin, double end) {
    boxes.push_back({rank, now, begin, end});
  };
  timeline_player<Table> player(table, at);
  const auto& played = player.play_watched(forward, backward, watch, at);
  return draw_boxes(table, boxes, played.total, played.idle());
}

/// The chart as an SVG, with a backward twice as long as a forward on every stage. Throws usage_error for a table
/// without a proof.
template <any_table Table>
[[nodiscard]] std::string draw_svg(const Table& table, where at = where::current()) {
  const std::vector<double> forward(table.stages(), 1);
  const std::vector<double> backward(table.stages(), 2);
  return draw_svg(table, forward, backward, at);
}

/// The chart as an SVG with a time for each half of a backward, of ranks whose messages wait for nobody, as edges do
/// that are deep enough. Throws usage_error where the ranks compute in orders that wait for each other.
template <any_table Table, schedule_costs Costs>
[[nodiscard]] std::string draw_svg(const Table& table, const Costs& costs, where at = where::current()) {
  const compute_lists lists(table);
  eager_times times(lists);
  if (!run_eagerly(lists, costs, times)) refuse_circle(lists, times, at);
  std::vector<chart_box> boxes;
  double total = 0, busy = 0;
  for (std::size_t rank = 0; rank < lists.ranks(); ++rank) {
    for (std::size_t i = 0; i < lists.size(rank); ++i) {
      const planned_compute& each = lists.of(rank)[i];
      const auto begin = static_cast<double>(times.begin[lists.first(rank) + i]);
      const auto end = static_cast<double>(times.end[lists.first(rank) + i]);
      boxes.push_back({rank, action::compute(each.kind, each.micro_batch, each.chunk), begin, end});
      total = greater_of(total, end);
      busy += end - begin;
    }
  }
  const double all = total * static_cast<double>(lists.ranks());
  return draw_boxes(table, boxes, total, all > 0 ? 1 - busy / all : 0);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
