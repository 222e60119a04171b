// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Few of all settings that can be, such that two values meet in one of them wherever they meet in any.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <vector>

namespace laws {

/// A setting: of each column the number of its value, below `most_values`.
template <std::size_t Columns>
using setting_row = std::array<unsigned, Columns>;
inline constexpr std::size_t most_values = 16;

/// Which values of two columns meet in the rows that were added.
template <std::size_t Columns>
class met_pairs {
 public:
  void add(const setting_row<Columns>& row) noexcept {
    each_pair(row, [this](std::size_t pair) { met_.set(pair); });
  }
  /// How many pairs of `row` are in none of them.
  [[nodiscard]] std::size_t missing_of(const setting_row<Columns>& row) const noexcept {
    std::size_t out = 0;
    each_pair(row, [&](std::size_t pair) { out += met_[pair] ? 0 : 1; });
    return out;
  }
  [[nodiscard]] std::size_t count() const noexcept { return met_.count(); }

  friend bool operator==(const met_pairs&, const met_pairs&) = default;

 private:
  static void each_pair(const setting_row<Columns>& row, auto visit) {
    for (std::size_t a = 0; a < Columns; ++a)
      for (std::size_t b = a + 1; b < Columns; ++b)
        visit(((a * most_values + row[a]) * Columns + b) * most_values + row[b]);
  }
  std::bitset<Columns * most_values * Columns * most_values> met_;
};

template <std::size_t Columns>
[[nodiscard]] met_pairs<Columns> pairs_of(const std::vector<setting_row<Columns>>& rows) {
  met_pairs<Columns> out;
  for (const auto& row : rows) out.add(row);
  return out;
}

/// Of `all`, always the row with most pairs that were not met, until none is left.
template <std::size_t Columns>
[[nodiscard]] std::vector<setting_row<Columns>> pairwise(const std::vector<setting_row<Columns>>& all) {
  std::vector<setting_row<Columns>> out;
  met_pairs<Columns> met;
  for (;;) {
    const setting_row<Columns>* best = nullptr;
    std::size_t most = 0;
    for (const auto& row : all)
      if (const std::size_t missing = met.missing_of(row); missing > most) best = &row, most = missing;
    if (best == nullptr) return out;
    met.add(*best);
    out.push_back(*best);
  }
}

}  // namespace laws
