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
#include <span>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/report/page/room.hpp"

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

}  // namespace belay::inline BELAY_ABI
