// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A plan as an SVG that needs nothing else: bytes of each class of ranks, stacked by purpose, tier by tier, and the
// schedule below.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/printable.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/schedule_chart.hpp"
#include "belay/train/plan_table.hpp"
#include "tools/belay_plan/plan.hpp"
#include "tools/belay_plan/text.hpp"

namespace belay_plan {

class plan_picture {
 public:
  static constexpr std::size_t most_bars = 16;
  static constexpr std::size_t most_cells = 1024;  // micro-batches times stages that are drawn

  explicit plan_picture(const plan_result& plan, const belay::budget& limit)
      : plan_(&plan), limit_(&limit), bars_(chosen_classes(plan, most_bars)) {
    for (const rank_class& each : plan.classes)
      for (const purpose_row& row : each.rows)
        if (std::find(purposes_.begin(), purposes_.end(), row.purpose) == purposes_.end())
          purposes_.push_back(row.purpose);
  }

  [[nodiscard]] std::string svg() const {
    std::string body;
    double y = 26;
    body += text(16, y, escaped(title()), "font-size=\"15\" font-weight=\"bold\"");
    body += text(16, y += 20, escaped(flags_of(plan_->run)), "class=\"soft\"");
    body += text(16, y += 18, escaped(subtitle()), "class=\"soft\"");
    if (bars_.size() < plan_->classes.size())
      body += text(16, y += 18,
                   std::to_string(bars_.size()) + " of " + std::to_string(plan_->classes.size()) +
                       " classes of ranks, the fullest among them",
                   "class=\"soft\"");
    y = legend(body, y + 22);
    for (std::size_t t = 0; t < belay::tier_count; ++t) y = panel(body, static_cast<belay::tier>(t), y + 20);
    y = schedule(body, y + 16);
    const std::string high = number(y + 12);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plan\" width=\"1060\" height=\"" + high +
           "\" viewBox=\"0 0 1060 " + high + "\" font-family=\"sans-serif\" font-size=\"12\">\n" + style() +
           "<rect class=\"back\" width=\"1060\" height=\"" + high + "\"/>\n" + body + "</svg>\n";
  }

 private:
  static constexpr double left = 96, width = 940, height = 220;
  // Of purposes, light and dark.
  static constexpr std::array<std::array<const char*, 2>, 14> colours{{{"#3b6fb6", "#6aa9f5"},
                                                                       {"#2e8b57", "#5cc48d"},
                                                                       {"#d98e04", "#f0a94e"},
                                                                       {"#8b5fb0", "#b78ee8"},
                                                                       {"#2aa198", "#4fc0d3"},
                                                                       {"#c8453b", "#ff7b72"},
                                                                       {"#7a8b99", "#9ba5b0"},
                                                                       {"#b58900", "#d9b13b"},
                                                                       {"#d36fa0", "#ef82b0"},
                                                                       {"#4d4d4d", "#d3d9df"},
                                                                       {"#7fb2e5", "#3f6fb5"},
                                                                       {"#9ccc65", "#7fae5f"},
                                                                       {"#8d6e63", "#b7a48c"},
                                                                       {"#26418f", "#8fb4e3"}}};

  [[nodiscard]] static std::string number(double value) { return belay::schedule::two_digits(value); }
  [[nodiscard]] static std::string escaped(std::string_view words) {
    std::string out;
    for (const char c : belay::printable(words)) {
      if (c == '&')
        out += "&amp;";
      else if (c == '<')
        out += "&lt;";
      else
        out += c;
    }
    return out;
  }
  [[nodiscard]] static std::string text(double x, double y, const std::string& words, const char* how = "") {
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + how + ">" + words + "</text>\n";
  }
  [[nodiscard]] std::string colour_of(const std::string& what) const {
    const auto at = static_cast<std::size_t>(std::find(purposes_.begin(), purposes_.end(), what) - purposes_.begin());
    return "p" + std::to_string(at % colours.size());
  }
  // As the chart of the schedule has them: light, and dark where the reader's system says so.
  [[nodiscard]] static std::string style() {
    std::string light =
        ".plan text{fill:#1b1f24}.plan .soft{fill:#5a636e}.plan .back{fill:#fff}.plan .grid{stroke:#ddd}"
        ".plan .limit{stroke:#c00}.plan .over{fill:#c00}";
    std::string dark =
        ".plan text{fill:#e8ebee}.plan .soft{fill:#9ba5b0}.plan .back{fill:#1b2026}.plan .grid{stroke:"
        "#2f363e}.plan .limit{stroke:#ff7b72}.plan .over{fill:#ff7b72}";
    for (std::size_t i = 0; i < colours.size(); ++i) {
      const std::string of = ".p" + std::to_string(i) + "{fill:";
      light += of + colours[i][0] + "}";
      dark += of + colours[i][1] + "}";
    }
    return "<style>" + light + "@media(prefers-color-scheme:dark){" + dark + "}</style>\n";
  }

  [[nodiscard]] std::string title() const {
    return plan_->model.name + ", " + grouped(parameters_of(plan_->model)) + " parameters, on " +
           grouped(plan_->run.ranks()) + (plan_->run.ranks() == 1 ? " rank" : " ranks");
  }
  [[nodiscard]] std::string subtitle() const {
    return plan_->rehearsed() ? "bytes of the rehearsal that train_moe begins with"
                              : "states by formula, activations and what is made for them an estimate";
  }

  // Rows of names with their colours.
  [[nodiscard]] double legend(std::string& out, double y) const {
    double x = 16;
    for (const std::string& each : purposes_) {
      const double wide = 30 + 7 * static_cast<double>(each.size());
      if (x + wide > 1044) {
        x = 16;
        y += 20;
      }
      out += "<rect x=\"" + number(x) + "\" y=\"" + number(y - 10) + "\" width=\"12\" height=\"12\" class=\"" +
             colour_of(each) + "\"/>\n" + text(x + 17, y, escaped(each));
      x += wide;
    }
    return y;
  }

  // Bars of one tier, where any class needs it.
  [[nodiscard]] double panel(std::string& out, belay::tier in, double y) const {
    count most = 0;
    for (const rank_class* each : bars_) most = std::max(most, each->total(in));
    if (most == 0) return y - 20;
    const count limit = (*limit_)[in];
    const bool limited = limit != belay::unlimited_bytes;
    // With room for what stands on the bars.
    const auto axis = belay::page_axis::around(0, 1.1 * static_cast<double>(limited ? std::max(most, limit) : most),
                                               belay::page_unit::bytes);
    const double top = axis.high, bottom = y + 18 + height;
    const auto high = [&](double bytes) { return bytes / top * height; };
    out += text(16, y + 6, std::string("tier ") + belay::name(in) + ", bytes a rank", "font-weight=\"bold\"");
    for (int i = 0; i < axis.ticks(); ++i) {
      const double bytes = axis.tick(i);
      const std::string at = number(bottom - high(bytes));
      out +=
          "<path d=\"M" + number(left) + " " + at + "H" + number(left + width) + "\" class=\"grid\"/>\n" +
          text(left - 8, bottom - high(bytes) + 4, belay::bytes_text(static_cast<count>(bytes)), "text-anchor=\"end\"");
    }
    const double step = width / static_cast<double>(bars_.size()), wide = std::min(0.7 * step, 120.0);
    for (std::size_t i = 0; i < bars_.size(); ++i)
      bar(out, *bars_[i], in, left + step * (static_cast<double>(i) + 0.5), wide, bottom, top);
    if (limited)
      out += "<path d=\"M" + number(left) + " " + number(bottom - high(static_cast<double>(limit))) + "H" +
             number(left + width) + "\" class=\"limit\" stroke-dasharray=\"6 4\"/>\n" +
             text(left + width, y + 6, "budget " + belay::bytes_text(limit), "text-anchor=\"end\" class=\"over\"");
    return bottom + 34;
  }

  void bar(std::string& out, const rank_class& one, belay::tier in, double middle, double wide, double bottom,
           double top) const {
    double y = bottom;
    for (const purpose_row& row : one.rows) {
      if (row.where_it_is != in) continue;
      const double high = static_cast<double>(row.bytes) / top * height;
      y -= high;
      out += "<rect x=\"" + number(middle - wide / 2) + "\" y=\"" + number(y) + "\" width=\"" + number(wide) +
             "\" height=\"" + number(high) + "\" class=\"" + colour_of(row.purpose) + "\"><title>" +
             escaped(row.purpose) + ": " + grouped(row.bytes) + " bytes, " + name(row.from) + "</title></rect>\n";
    }
    const char* const centred = "text-anchor=\"middle\"";
    out += text(middle, bottom + 15, stages_of(one), centred);
    out +=
        text(middle, bottom + 29, shortened_ranks(one.ranks), "text-anchor=\"middle\" class=\"soft\" font-size=\"10\"");
    out += text(middle, y - 4, belay::bytes_text(one.total(in)),
                bars_.size() <= 8 ? centred : "text-anchor=\"middle\" font-size=\"11\"");
  }
  [[nodiscard]] std::string stages_of(const rank_class& one) const {
    const laid_schedule& laid = plan_->run.laid();
    return (laid.chunks() == 1 ? "stage " : "stages ") + laid.stages_text(static_cast<std::size_t>(one.stage));
  }
  // As many ranges as there is room for below a bar, at least the first.
  [[nodiscard]] std::string shortened_ranks(const std::vector<rank_range>& ranks) const {
    std::size_t most = 4;
    while (most > 1 && static_cast<double>(ranks_text(ranks, most).size()) * 5.5 > room()) --most;
    std::string out = ranks_text(ranks, most);
    if (static_cast<double>(out.size()) * 5.5 > room()) out = ranks_text({ranks.front()}) + "+";
    return out;
  }
  [[nodiscard]] double room() const noexcept { return width / static_cast<double>(bars_.size()) - 4; }

  // As it is played with the predicted times.
  [[nodiscard]] double schedule(std::string& out, double y) const {
    const setting& run = plan_->run;
    if (run.pipeline_ranks() == 1) return y;
    out += text(16, y,
                "bubble " + percent(plan_->bubble.equal_stages) + " with equal stages, " +
                    percent(plan_->bubble.by_time) + " with the predicted times",
                "font-weight=\"bold\"");
    const auto ranks = static_cast<std::size_t>(run.pipeline_ranks());
    const auto size = static_cast<std::size_t>(run.micro_batches());
    const std::size_t stages = run.laid().stages();
    if (stages * size > most_cells) {
      y += 20;
      out += text(16, y,
                  "the schedule has " + std::to_string(size) + " micro-batches on " + std::to_string(stages) +
                      " stages, too many to draw",
                  "class=\"soft\"");
      return y;
    }
    const auto costs = time_model(plan_->model, run, plan_->constants).of_stages().costs();
    std::string chart = belay::schedule::draw_svg(run.schedule.of(ranks, size), costs);
    const std::string_view begin = "<svg ";
    chart.insert(begin.size(), "x=\"8\" y=\"" + number(y + 6) + "\" ");
    out += chart;
    return y + 6 + 44 + 28 * static_cast<double>(ranks);
  }

  const plan_result* plan_;
  const belay::budget* limit_;
  std::vector<const rank_class*> bars_;
  std::vector<std::string> purposes_;
};

}  // namespace belay_plan
