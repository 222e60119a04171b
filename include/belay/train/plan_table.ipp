// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The table of a plan in words.
#pragma once

#include "belay/train/plan_table.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t size = 1024;
  // What would be rounded to 1024 of a unit is one of the next.
  for (; unit + 1 < std::size(units) && tenths_of(bytes, size) >= 10240; ++unit) size *= 1024;
  const std::uint64_t tenths = tenths_of(bytes, size);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " " + std::string(units[unit]);
}

BELAY_DECL plan_printer::plan_printer(const plan_table& table) : table_(table) {
  for (const plan_row& row : table.rows) {
    if (row.bytes.size() > ranks_) ranks_ = row.bytes.size();
  }
}

BELAY_DECL bool plan_printer::fits() const {
  for (const plan_budget& budget : table_.budgets) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (total(budget.tier, rank) > budget.bytes) return false;
    }
  }
  return true;
}

BELAY_DECL std::string plan_printer::text() const {
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

BELAY_DECL std::uint64_t plan_printer::total(std::string_view tier, std::size_t rank) const noexcept {
  checked_size folded;
  for (const plan_row& row : table_.rows) {
    if (row.tier == tier) folded += of(row, rank);
  }
  return folded.saturated();
}

BELAY_DECL auto plan_printer::first_of(std::string_view tier) const noexcept -> const plan_row& {
  std::size_t row = 0;
  while (table_.rows[row].tier != tier) ++row;
  return table_.rows[row];
}

BELAY_DECL void plan_printer::add_heading(std::vector<std::string>& cells) const {
  cells.push_back("tier");
  cells.push_back("bytes for");
  if (ranks_ > most_columns) {
    for (const char* word : {"smallest", "largest", "all ranks"}) cells.push_back(word);
  } else {
    for (std::size_t rank = 0; rank < ranks_; ++rank) cells.push_back("rank " + std::to_string(rank));
  }
}

BELAY_DECL std::string plan_printer::aligned(std::vector<std::string>& cells) const {
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

BELAY_DECL std::string plan_printer::shortages() const {
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
    text += printable(budget.tier) + ": rank " + std::to_string(worst) + " needs " + std::to_string(most) + " bytes (" +
            bytes_text(most) + "), the budget is " + std::to_string(budget.bytes) + " (" + bytes_text(budget.bytes) +
            "): short by " + std::to_string(missing) + " (" + bytes_text(missing) + ")\n";
  }
  if (text.empty() || table_.suggestions.empty()) return text;
  text += "what would need less:\n";
  for (std::string_view suggestion : table_.suggestions) text += "  - " + printable(suggestion) + "\n";
  return text;
}

}  // namespace belay::inline BELAY_ABI
