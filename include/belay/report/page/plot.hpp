// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The frame of a picture: an SVG that is stretched to the page's width, and its labels beside it as texts, which keep
// their size.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/report/page/history.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

/// A picture of 1,000 x 200 units, whatever its size on a screen.
class page_plot {
 public:
  static constexpr double width = 1000;
  static constexpr double height = 200;

  explicit page_plot(page_markup& out) noexcept : out_(&out) {}

  /// The caption's begin; keys follow, then end_caption().
  void caption(std::string_view title, std::string_view unit) {
    (*out_ << "<figure><figcaption><b>").text(title, 60) << "</b>";
    if (!unit.empty()) *out_ << " <small>" << unit << "</small>";
  }
  /// One entry of the legend; a value, or more of it, follows, then `</span>`.
  page_markup& key(std::size_t colour, std::string_view label, std::string_view form = "key") {
    return (*out_ << "<span class=\"" << form << " c" << colour << "\">").text(label, 60) << " ";
  }
  void end_caption() { *out_ << "</figcaption>\n"; }

  /// Labels of the axis upwards, and the picture with its lines.
  void begin(std::string_view title, const page_axis& axis) {
    *out_ << "<div class=\"plot\"><div class=\"y\">";
    const int ticks = axis.ticks();
    const double size = greater_of(std::abs(axis.low), std::abs(axis.high)) / axis.step;
    const int digits = lesser_of(9, greater_of(3, 1 + static_cast<int>(std::ceil(std::log10(size)))));
    for (int i = 0; i < ticks; ++i) {
      *out_ << "<span style=\"top:";
      out_->place(100 - 100 * axis.share(axis.tick(i))) << "%\">";
      out_->value(axis.tick(i), axis.unit, digits) << "</span>";
    }
    *out_ << "</div>";
    open(title, static_cast<std::size_t>(width), static_cast<std::size_t>(height));
    *out_ << "<path class=\"grid\" d=\"";
    for (int i = 0; i < ticks; ++i) {
      *out_ << "M0 ";
      out_->place(height - height * axis.share(axis.tick(i))) << "H1000";
    }
    *out_ << "\"/>";
  }
  void open(std::string_view title, std::size_t wide, std::size_t high) {
    (*out_ << "<svg viewBox=\"0 0 " << wide << " " << high << "\" preserveAspectRatio=\"none\" role=\"img\"")
        << " aria-label=\"";
    out_->text(title, 60) << "\">";
  }

  /// The picture's end, the steps below it, and the figure's.
  void end(const step_buckets& steps) { end(steps.first(), steps.last(), "step "); }
  /// The picture's end, numbers from `first` to `last` below it, `what` before the first of them, and the figure's end.
  void end(std::uint64_t first, std::uint64_t last, std::string_view what) {
    *out_ << "</svg><div class=\"x\">";
    const std::uint64_t all = last - first, step = step_of(all);
    const std::uint64_t begin = step <= 2 ? first : (first + step - 1) / step * step;
    const std::uint64_t labels = (last - begin) / step + 1;
    for (std::uint64_t i = 0; i < labels; ++i) {
      const std::uint64_t here = begin + i * step;
      label(all == 0 ? 0.5 : static_cast<double>(here - first) / static_cast<double>(all), labels > 3 && i % 2 == 1);
      *out_ << (i == 0 ? what : "") << here << "</span>";
    }
    *out_ << "</div></div></figure>\n";
  }
  /// The begin of a label below a picture, 0 to 1 from its left; its text follows, then `</span>`. On a narrow screen
  /// labels that are `odd` are left out.
  void label(double where, bool odd) {
    const std::string_view side = where == 0 ? "start" : where > 0.97 ? "end" : "only";
    *out_ << "<span class=\"" << side << (odd ? " odd" : "") << "\" style=\"left:";
    out_->place(100 * where) << "%\">";
  }

  void point(double across, double up) {
    out_->place(width * across) << " ";
    out_->place(height - height * up) << " ";
  }

 private:
  // From label to label, of at most six: 1, 2 or 5 and zeros.
  [[nodiscard]] static std::uint64_t step_of(std::uint64_t all) noexcept {
    for (std::uint64_t power = 1;; power *= 10)
      for (const std::uint64_t step : {power, 2 * power, 5 * power})
        if (all / step <= 5) return step;
  }

  page_markup* out_;
};

/// A curve in a picture.
struct page_curve {
  report_curve curve;
  std::string_view label;
  std::size_t colour;
};
/// Where a picture's axis begins.
enum class page_base : std::uint8_t { data, zero };

/// Curves over the steps of a run, and the marks of what happened beside them.
class page_curves {
 public:
  page_curves(page_markup& out, const report_history& history) noexcept : out_(&out), history_(&history), plot_(out) {}

  /// One picture of those curves that have values; nothing where none has. A bucket of several steps has the line at
  /// their mean, in a band from least to most.
  void draw(std::string_view title, std::string_view unit_text, std::span<const page_curve> which, page_unit unit,
            page_base base) {
    double low = 0, high = 0;
    bool any = false;
    for (const page_curve& each : which) {
      for (const report_history::point& point : history_->points(each.curve)) {
        if (point.count == 0) continue;
        low = any ? lesser_of(low, point.least) : point.least;
        high = any ? greater_of(high, point.most) : point.most;
        any = true;
      }
    }
    if (!any) return;
    if (base == page_base::zero) low = lesser_of(low, 0.0);
    const page_axis axis = page_axis::around(low, high, unit);
    plot_.caption(title, unit_text);
    for (const page_curve& each : which)
      if (history_->current(each.curve))
        plot_.key(each.colour, each.label).value(history_->last(each.curve), unit) << "</span>";
      else if (history_->has(each.curve))
        plot_.key(each.colour, each.label) << "before the resume</span>";
    plot_.end_caption();
    plot_.begin(title, axis);
    for (const page_curve& each : which) {
      if (!history_->has(each.curve)) continue;
      band(each, axis);
      line(each, axis);
    }
    plot_.end(history_->buckets());
  }

  /// A lane for each kind of mark that there is.
  void draw_marks() {
    std::uint64_t any = 0;
    for (std::size_t mark = 0; mark < report_mark_count; ++mark) any += history_->total(static_cast<report_mark>(mark));
    *out_ << "<section><h2>What happened beside training</h2>\n";
    if (any == 0) {
      *out_ << "<p>No step was replayed or refused, and no gather was without a plan.</p></section>\n";
      return;
    }
    *out_ << "<div class=\"lanes\">";
    for (std::size_t number = 0; number < report_mark_count; ++number) {
      const auto mark = static_cast<report_mark>(number);
      const std::uint64_t total = history_->total(mark);
      if (total == 0) continue;
      const bool bad = mark == report_mark::replay || mark == report_mark::refusal || mark == report_mark::plan_miss;
      *out_ << "<span>" << total << " " << name(mark)
            << (total == 1                       ? ""
                : mark == report_mark::plan_miss ? "es"
                                                 : "s")
            << "</span>";
      plot_.open(name(mark), 1000, 10);
      *out_ << "<path class=\"lane\" d=\"M0 5H1000\"/><path class=\"mark " << (bad ? "bad" : "fine") << "\" d=\"";
      const auto marks = history_->marks(mark);
      for (std::size_t bucket = 0; bucket < marks.size(); ++bucket) {
        if (marks[bucket] == 0) continue;
        *out_ << "M";
        out_->place(2 + 996 * history_->buckets().position(bucket)) << " 0v10";
      }
      *out_ << "\"/></svg>";
    }
    *out_ << "</div></section>\n";
  }

 private:
  void line(const page_curve& which, const page_axis& axis) {
    const auto points = history_->points(which.curve);
    const auto many = std::count_if(points.begin(), points.end(), [](const auto& each) { return each.count > 0; });
    *out_ << "<path class=\"line" << (many == 1 ? " dot" : "") << " c" << which.colour << "\" d=\"M";
    for (std::size_t bucket = 0; bucket < points.size(); ++bucket)
      if (points[bucket].count > 0)
        plot_.point(history_->buckets().position(bucket), axis.share(points[bucket].mean()));
    *out_ << (many == 1 ? "h0" : "") << "\"/>";
  }
  void band(const page_curve& which, const page_axis& axis) {
    const auto points = history_->points(which.curve);
    if (std::none_of(points.begin(), points.end(), [](const auto& each) { return each.most > each.least; })) return;
    *out_ << "<path class=\"band c" << which.colour << "\" d=\"M";
    for (std::size_t bucket = 0; bucket < points.size(); ++bucket)
      if (points[bucket].count > 0) plot_.point(history_->buckets().position(bucket), axis.share(points[bucket].most));
    for (std::size_t bucket = points.size(); bucket-- > 0;)
      if (points[bucket].count > 0) plot_.point(history_->buckets().position(bucket), axis.share(points[bucket].least));
    *out_ << "Z\"/>";
  }

  page_markup* out_;
  const report_history* history_;
  page_plot plot_;
};

}  // namespace belay::inline BELAY_ABI
