// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A plan as a table: what every tier of every rank is needed for, to the byte. Where a budget is exceeded, the same
// text says where, by how much, and what would help.
//
//   const belay::plan_row rows[] = {{"device", "activations", bytes_of_each_rank}};
//   const belay::plan_budget budgets[] = {{"device", std::uint64_t{1} << 30}};
//   const belay::plan_printer printer({.rows = rows, .budgets = budgets});
//   std::puts(printer.text().c_str());
//   if (!printer.fits()) return 1;
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/printable.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of one purpose in one tier, with an entry for each rank. Rows of a tier add up to its peak.
struct plan_row {
  /// A row: tier, purpose, and bytes of each rank.
  std::string_view tier;
  std::string_view purpose;
  std::span<const std::uint64_t> bytes;
};

/// The bytes that one rank may use of a tier. A tier that is not listed is not limited.
struct plan_budget {
  /// A tier and its budget.
  std::string_view tier;
  std::uint64_t bytes = 0;
};

/// The content of the table. It points to the caller's memory.
struct plan_table {
  /// Rows and budgets; the memory outlives it.
  std::span<const plan_row> rows = {};
  std::span<const plan_budget> budgets = {};
  std::span<const std::string_view> suggestions = {};  // what would need less; shown only where a budget is exceeded
};

/// Tenths of `unit` that `bytes` are, to the nearest: the digits before and after the point of all sizes that are
/// printed.
[[nodiscard]] constexpr std::uint64_t tenths_of(std::uint64_t bytes, std::uint64_t unit) noexcept {
  return bytes / unit * 10 + (bytes % unit * 10 + unit / 2) / unit;
}

/// "12.5 MiB", to the nearest tenth, in the unit that leaves one to four digits before the point.
[[nodiscard]] BELAY_DECL std::string bytes_text(std::uint64_t bytes);

/// Formats plan tables. It builds strings, so it is not for every step.
class plan_printer {
 public:
  static constexpr std::size_t most_columns = 8;  // more ranks are shown as smallest, largest and sum

  /// The table outlives it.
  explicit plan_printer(const plan_table& table);

  /// True when every tier of every rank is within its budget.
  [[nodiscard]] bool fits() const;

  /// The table; then, for each tier that exceeds its budget, the worst rank and the missing bytes; then what would
  /// help.
  [[nodiscard]] std::string text() const;

 private:
  [[nodiscard]] static std::uint64_t of(const plan_row& row, std::size_t rank) noexcept {
    return rank < row.bytes.size() ? row.bytes[rank] : 0;
  }

  [[nodiscard]] std::uint64_t total(std::string_view tier, std::size_t rank) const noexcept;

  [[nodiscard]] const plan_row& first_of(std::string_view tier) const noexcept;

  [[nodiscard]] std::size_t columns() const noexcept { return 2 + (ranks_ > most_columns ? 3 : ranks_); }

  void add_heading(std::vector<std::string>& cells) const;

  // Row by row, `columns()` cells each.
  template <class BytesOfRank>
  void add_line(std::vector<std::string>& cells, std::string_view tier, std::string_view purpose,
                BytesOfRank bytes) const {
    cells.push_back(printable(tier));
    cells.push_back(printable(purpose));
    if (ranks_ > most_columns) {
      std::uint64_t smallest = bytes(0);
      std::uint64_t largest = 0;
      std::uint64_t folded = 0;
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        const std::uint64_t each = bytes(rank);
        if (each < smallest) smallest = each;
        if (each > largest) largest = each;
        folded += each;
      }
      for (std::uint64_t each : {smallest, largest, folded}) cells.push_back(std::to_string(each));
    } else {
      for (std::size_t rank = 0; rank < ranks_; ++rank) cells.push_back(std::to_string(bytes(rank)));
    }
  }

  // The cells as lines: words left-aligned, numbers right-aligned.
  [[nodiscard]] std::string aligned(std::vector<std::string>& cells) const;

  [[nodiscard]] std::string shortages() const;

  plan_table table_;
  std::size_t ranks_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/plan_table.ipp"  // IWYU pragma: export
#endif
