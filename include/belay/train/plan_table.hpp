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
[[nodiscard]] inline std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t size = 1024;
  // What would be rounded to 1024 of a unit is one of the next.
  for (; unit + 1 < std::size(units) && tenths_of(bytes, size) >= 10240; ++unit) size *= 1024;
  const std::uint64_t tenths = tenths_of(bytes, size);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " " + std::string(units[unit]);
}

/// Formats plan tables. It builds strings, so it is not for every step.
class plan_printer {
 public:
  static constexpr std::size_t most_columns = 8;  // more ranks are shown as smallest, largest and sum

  /// The table outlives it.
  explicit plan_printer(const plan_table& table) : table_(table) {
    for (const plan_row& row : table.rows) {
      if (row.bytes.size() > ranks_) ranks_ = row.bytes.size();
    }
  }

  /// True when every tier of every rank is within its budget.
  [[nodiscard]] bool fits() const {
    for (const plan_budget& budget : table_.budgets) {
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        if (total(budget.tier, rank) > budget.bytes) return false;
      }
    }
    return true;
  }

  /// The table; then, for each tier that exceeds its budget, the worst rank and the missing bytes; then what would
  /// help.
  [[nodiscard]] std::string text() const {
    std::vector<std::string> cells;
    add_heading(cells);
    for (const plan_row& first : table_.rows) {
      if (&first != &first_of(first.tier)) continue;  // its tier was shown already
      for (const plan_row& row : table_.rows) {
        if (row.tier != first.tier) continue;
        add_line(cells, row.tier, row.purpose, [&](std::size_t rank) { return of(row, rank); });
      }
      add_line(cells, first.tier, "total", [&](std::size_t rank) { return total(first.tier, rank); });
      for (const plan_budget& budget : table_.budgets) {
        if (budget.tier != first.tier) continue;
        add_line(cells, budget.tier, "budget", [&](std::size_t) { return budget.bytes; });
      }
    }
    return aligned(cells) + shortages();
  }

 private:
  [[nodiscard]] static std::uint64_t of(const plan_row& row, std::size_t rank) noexcept {
    return rank < row.bytes.size() ? row.bytes[rank] : 0;
  }

  [[nodiscard]] std::uint64_t total(std::string_view tier, std::size_t rank) const noexcept {
    checked_size folded;
    for (const plan_row& row : table_.rows) {
      if (row.tier == tier) folded += of(row, rank);
    }
    return folded.saturated();
  }

  [[nodiscard]] const plan_row& first_of(std::string_view tier) const noexcept {
    std::size_t row = 0;
    while (table_.rows[row].tier != tier) ++row;
    return table_.rows[row];
  }

  [[nodiscard]] std::size_t columns() const noexcept { return 2 + (ranks_ > most_columns ? 3 : ranks_); }

  void add_heading(std::vector<std::string>& cells) const {
    cells.push_back("tier");
    cells.push_back("bytes for");
    if (ranks_ > most_columns) {
      for (const char* word : {"smallest", "largest", "all ranks"}) cells.push_back(word);
    } else {
      for (std::size_t rank = 0; rank < ranks_; ++rank) cells.push_back("rank " + std::to_string(rank));
    }
  }

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
  [[nodiscard]] std::string aligned(std::vector<std::string>& cells) const {
    for (std::size_t column = 0; column < columns(); ++column) {
      std::size_t width = 0;
      for (std::size_t i = column; i < cells.size(); i += columns()) {
        if (cells[i].size() > width) width = cells[i].size();
      }
      for (std::size_t i = column; i < cells.size(); i += columns()) {
        cells[i].insert(column < 2 ? cells[i].size() : 0, width - cells[i].size(), ' ');
      }
    }
    std::string text;
    for (std::size_t i = 0; i < cells.size(); i += columns()) {
      text += cells[i];
      for (std::size_t column = 1; column < columns(); ++column) text += "  " + cells[i + column];
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
    return text;
  }

  [[nodiscard]] std::string shortages() const {
    std::string text;
    for (const plan_budget& budget : table_.budgets) {
      std::uint64_t most = budget.bytes;
      std::size_t worst = 0;
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        const std::uint64_t needs = total(budget.tier, rank);
        if (needs > most) {
          most = needs;
          worst = rank;
        }
      }
      if (most == budget.bytes) continue;
      const std::uint64_t missing = most - budget.bytes;
      text += printable(budget.tier) + ": rank " + std::to_string(worst) + " needs " + std::to_string(most) +
              " bytes (" + bytes_text(most) + "), the budget is " + std::to_string(budget.bytes) + " (" +
              bytes_text(budget.bytes) + "): short by " + std::to_string(missing) + " (" + bytes_text(missing) + ")\n";
    }
    if (text.empty() || table_.suggestions.empty()) return text;
    text += "what would need less:\n";
    for (std::string_view suggestion : table_.suggestions) text += "  - " + printable(suggestion) + "\n";
    return text;
  }

  plan_table table_;
  std::size_t ranks_ = 0;
};

}  // namespace belay::inline BELAY_ABI
