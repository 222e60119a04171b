// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The frame of a picture: an SVG that is stretched to the page's width, and its labels beside it as texts, which keep
// their size.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/room.hpp"

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

}  // namespace belay::inline BELAY_ABI
