// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The map of how busy experts were, as a picture: a line of one colour for neighbouring cells of the same class.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/report/page/expert_map.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/plot.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

class expert_picture {
 public:
  /// Where classes begin, over the load of a balanced layer.
  static constexpr float bounds[] = {0.25F, 0.5F, 0.8F, 1.25F, 1.6F, 2.0F, 3.0F, 4.0F};
  static constexpr std::size_t classes = std::size(bounds) + 1;

  explicit expert_picture(page_markup& out) noexcept : out_(&out), plot_(out) {}

  /// Nothing where no tokens were ever counted.
  void draw(const expert_map& map, const report_subject& subject) {
    const std::size_t rows = map.rows(), columns = map.buckets().used();
    if (rows == 0 || columns == 0) return;
    *out_ << "<section><h2>Expert load</h2>\n";
    plot_.caption("Tokens of each expert", "over those of a balanced layer");
    for (std::size_t level = 0; level < classes; ++level) {
      *out_ << "<span class=\"key area h" << level << "\">";
      if (level == 0) {
        (*out_ << "below ").number(static_cast<double>(bounds[0]));
      } else {
        out_->number(static_cast<double>(bounds[level - 1])) << (level + 1 == classes ? " and more" : "-");
        if (level + 1 < classes) out_->number(static_cast<double>(bounds[level]));
      }
      *out_ << "</span>";
    }
    plot_.end_caption();
    coarseness(map);
    *out_ << "<div class=\"plot heat\" style=\"--rows:" << rows << "\"><div class=\"y\">";
    layers(map, subject.layers, rows);
    *out_ << "</div>";
    plot_.open("Tokens of each expert", columns, rows);
    for (std::size_t level = 0; level < classes; ++level) cells(map, level);
    const std::size_t each = map.layers_each();
    *out_ << "<path class=\"grid\" d=\"";
    for (std::size_t layer = each; layer < subject.layers && subject.layers <= 16 * each; layer += each)
      *out_ << "M0 " << map.row_of(layer, 0) << "H" << columns;
    *out_ << "\"/>";
    plot_.end(map.buckets());
    *out_ << "</section>\n";
  }

 private:
  [[nodiscard]] static std::size_t level_of(float load) noexcept {
    return static_cast<std::size_t>(std::upper_bound(std::begin(bounds), std::end(bounds), load) - std::begin(bounds));
  }

  void cells(const expert_map& map, std::size_t level) {
    const std::size_t columns = map.buckets().used();
    bool any = false;
    for (std::size_t row = 0; row < map.rows(); ++row) {
      for (std::size_t begin = 0; begin < columns;) {
        std::size_t end = begin;
        while (end < columns && level_of(map.cell(row, end)) == level) ++end;
        if (end == begin) {
          ++begin;
          continue;
        }
        if (!any) *out_ << "<path class=\"cell h" << level << "\" d=\"";
        any = true;
        *out_ << "M" << begin << " " << row << ".5h" << end - begin;
        begin = end;
      }
    }
    if (any) *out_ << "\"/>";
  }

  void coarseness(const expert_map& map) {
    const bool layers = map.layers_each() > 1, experts = map.experts_each() > 1, steps = map.buckets().each() > 1;
    if (!layers && !experts && !steps) return;
    *out_ << "<p class=\"note\">A cell is the busiest of ";
    if (layers) *out_ << map.layers_each() << " layers" << (experts || steps ? ", " : "");
    if (experts) *out_ << map.experts_each() << " experts" << (steps ? ", " : "");
    if (steps) *out_ << map.buckets().each() << " steps";
    *out_ << ".</p>\n";
  }

  // Of many layers not each has room for its name.
  [[nodiscard]] static bool shows(std::size_t group, std::size_t groups) noexcept {
    return group % ((groups + 15) / 16) == 0;
  }
  void layers(const expert_map& map, std::size_t layers, std::size_t rows) {
    const std::size_t each = map.layers_each(), groups = (layers + each - 1) / each;
    for (std::size_t group = 0; group < groups; ++group) {
      if (!shows(group, groups)) continue;
      const double middle =
          (static_cast<double>(group) + 0.5) * static_cast<double>(rows) / static_cast<double>(groups);
      *out_ << "<span style=\"top:";
      out_->place(100 * middle / static_cast<double>(rows)) << "%\">layer " << group * each;
      if (each > 1) *out_ << "+";
      *out_ << "</span>";
    }
  }

  page_markup* out_;
  page_plot plot_;
};

}  // namespace belay::inline BELAY_ABI
