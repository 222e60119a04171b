// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How busy experts were over a run, as a map of at most 16,384 cells: a row for each expert of each layer, or for
// several of them, and columns of steps. A cell keeps the largest share of what it stands for, over that of a balanced
// layer: 1 is perfect balance.
// IWYU pragma: private, include "belay/report/page.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/report/page/markup.hpp"
#include "belay/report/page/plot.hpp"
#include "belay/report/page/room.hpp"
#include "belay/report/page/sample.hpp"

namespace belay::inline BELAY_ABI {

class expert_map {
 public:
  static constexpr std::size_t most_cells = 16384;
  static constexpr std::size_t most_rows = 256;
  static constexpr std::size_t most_columns = 512;

  [[nodiscard]] static constexpr std::size_t room_bytes() noexcept { return report_room::bytes<float>(most_cells); }

  expert_map(std::size_t layers, std::size_t experts, report_room& room)
      : layers_(layers), experts_(experts), buckets_(most_columns), cells_(room.take<float>(most_cells)) {
    while (experts_each_ < experts_ && layers_ * groups(experts_, experts_each_) > most_rows) experts_each_ *= 2;
    while (rows() > most_rows) layers_each_ *= 2;
    const std::size_t columns = rows() == 0 ? 0 : lesser_of(most_columns, most_cells / rows()) / 2 * 2;
    buckets_ = step_buckets(columns);
    columns_ = columns;
  }

  /// Tokens that chose each expert of each layer in a step. Of another shape they are left out.
  void add(std::uint64_t step, view<const std::uint64_t, 2> tokens) noexcept {
    if (rows() == 0 || tokens.extent(0) != layers_ || tokens.extent(1) != experts_) return;
    const std::size_t column = buckets_.place(step, [this] { halve(); });
    if (column == columns_) return;
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      std::uint64_t total = 0;
      for (std::size_t expert = 0; expert < experts_; ++expert) total += tokens(layer, expert);
      if (total == 0) continue;
      const double balanced = static_cast<double>(total) / static_cast<double>(experts_);
      for (std::size_t expert = 0; expert < experts_; ++expert) {
        float& cell = cells_[row_of(layer, expert) * columns_ + column];
        cell = greater_of(cell, static_cast<float>(static_cast<double>(tokens(layer, expert)) / balanced));
      }
    }
  }

  [[nodiscard]] std::size_t rows() const noexcept {
    return groups(layers_, layers_each_) * groups(experts_, experts_each_);
  }
  /// Layers and experts of a row, and steps of a column.
  [[nodiscard]] std::size_t layers_each() const noexcept { return layers_each_; }
  [[nodiscard]] std::size_t experts_each() const noexcept { return experts_each_; }
  [[nodiscard]] const step_buckets& buckets() const noexcept { return buckets_; }
  [[nodiscard]] std::size_t row_of(std::size_t layer, std::size_t expert) const noexcept {
    return layer / layers_each_ * groups(experts_, experts_each_) + expert / experts_each_;
  }
  [[nodiscard]] float cell(std::size_t row, std::size_t column) const noexcept {
    return cells_[row * columns_ + column];
  }

 private:
  [[nodiscard]] static constexpr std::size_t groups(std::size_t of, std::size_t each) noexcept {
    return (of + each - 1) / each;
  }

  void halve() noexcept {
    for (std::size_t row = 0; row < rows(); ++row) {
      const std::span<float> cells = cells_.subspan(row * columns_, columns_);
      for (std::size_t i = 0; i < columns_ / 2; ++i) cells[i] = greater_of(cells[2 * i], cells[2 * i + 1]);
      std::fill(cells.begin() + static_cast<std::ptrdiff_t>(columns_ / 2), cells.end(), 0.0F);
    }
  }

  std::size_t layers_;
  std::size_t experts_;
  std::size_t layers_each_ = 1;
  std::size_t experts_each_ = 1;
  step_buckets buckets_;
  std::span<float> cells_;  // [row][column]
  std::size_t columns_ = 0;
};

/// The map of how busy experts were, as a picture: a line of one colour for neighbouring cells of the same class.
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
