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
#include "belay/core/printable.hpp"
#include "belay/core/where.hpp"
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

/// The chart as an SVG. `forward` and `backward` are the times of each stage, in any unit. Throws usage_error for a
/// table without a proof, or for times that are not one a stage.
template <any_table Table>
[[nodiscard]] std::string draw_svg(const Table& table, std::span<const double> forward,
                                   std::span<const double> backward, where at = where::current()) {
  constexpr double chart = 960;
  constexpr double row = 28;
  constexpr double left = 70;
  constexpr double top = 34;
  struct box {
    std::size_t rank;
    action what;
    double begin;
    double end;
  };
  std::vector<box> boxes;
  auto watch = [&](std::size_t rank, const action& now, double begin, double end) {
    boxes.push_back({rank, now, begin, end});
  };
  timeline_player<Table> player(table, at);
  const auto& played = player.play_watched(forward, backward, watch, at);
  const double scale = played.total > 0 ? chart / played.total : 0;

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
           two_digits(100 * played.idle()) + " %";
  const std::string wide = two_digits(left + chart + 10);
  const std::string high = two_digits(top + row * static_cast<double>(table.ranks()) + 10);
  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + wide + "\" height=\"" + high +
                    "\" viewBox=\"0 0 " + wide + " " + high + "\" font-family=\"sans-serif\" font-size=\"11\">\n" +
                    "<style>rect{stroke:#fff}.t{text-anchor:middle;fill:#fff}.forward{fill:#3b6fb6}" +
                    ".backward{fill:#2e8b57}.input{fill:#2aa198}.weight{fill:#b58900}" +
                    ".recompute{fill:#7a9bc9}</style>\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"8\" y=\"20\" font-size=\"13\">" +
                    title + "</text>\n";
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    const double y = top + row * static_cast<double>(rank);
    svg += "<text x=\"8\" y=\"" + two_digits(y + 17) + "\">" + label_of(table) + std::to_string(rank) +
           "</text>\n<rect x=\"" + two_digits(left) + "\" y=\"" + two_digits(y + 2) + "\" width=\"" +
           two_digits(chart) + "\" height=\"" + two_digits(row - 4) + "\" fill=\"#eee\"/>\n";
  }
  // Numbers are as large as their boxes have room for that of the last micro-batch; where that is too small there are
  // none, so that boxes of one width all have them, or none has.
  const auto digits = static_cast<double>(std::to_string(table.micro_batches() - 1).size());
  constexpr double legible = 6;
  for (const box& shown : boxes) {
    const double x = left + scale * shown.begin;
    const double w = scale * (shown.end - shown.begin);
    const double y = top + row * static_cast<double>(shown.rank);
    const std::string kind = name(shown.what.kind);
    const std::string number = std::to_string(shown.what.micro_batch);
    svg += "<rect class=\"" + kind.substr(0, kind.find(' ')) + "\" x=\"" + two_digits(x) + "\" y=\"" +
           two_digits(y + 2) + "\" width=\"" + two_digits(w) + "\" height=\"" + two_digits(row - 4) +
           (shown.what.chunk > 0 ? "\" opacity=\"0.7" : "") + "\"><title>stage " +
           std::to_string(table.stage(shown.rank, shown.what.chunk)) + ", " + kind + " of micro-batch " + number +
           "</title></rect>\n";
    const double letters = lesser_of(11.0, (w - 1) / (0.66 * digits));
    if (letters < legible) continue;
    svg += "<text class=\"t\" x=\"" + two_digits(x + w / 2) + "\" y=\"" + two_digits(y + 17) + "\" font-size=\"" +
           two_digits(letters) + "\">" + number + "</text>\n";
  }
  return svg + "</svg>\n";
}

/// The chart as an SVG, with a backward twice as long as a forward on every stage. Throws usage_error for a table
/// without a proof.
template <any_table Table>
[[nodiscard]] std::string draw_svg(const Table& table, where at = where::current()) {
  const std::vector<double> forward(table.stages(), 1);
  const std::vector<double> backward(table.stages(), 2);
  return draw_svg(table, forward, backward, at);
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
