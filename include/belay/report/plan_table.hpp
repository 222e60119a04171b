// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A plan as a table: what every tier of every rank is needed for, to the byte. When a budget does not hold
// it, the same table says where, by how much, and what would help.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Bytes of one purpose in one tier, an entry for each rank. Rows of a tier add up to its peak.
struct plan_row {
  std::string_view tier;
  std::string_view purpose;
  std::span<const std::uint64_t> bytes;
};

/// What one rank may use of a tier; a tier that is not listed is not limited.
struct plan_budget {
  std::string_view tier;
  std::uint64_t bytes = 0;
};

/// What the table is made of; points into the caller's memory.
struct plan_table {
  std::span<const plan_row> rows = {};
  std::span<const plan_budget> budgets = {};
  std::span<const std::string_view> suggestions = {};  // what would need less; shown only with a refusal
};

/// "12.5 MiB", in the unit that leaves one to four digits before the point.
[[nodiscard]] inline std::string bytes_text(std::uint64_t bytes) {
  constexpr std::string_view units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t whole = bytes;
  std::uint64_t rest = 0;
  while (whole >= 1024) {
    rest = whole % 1024;
    whole /= 1024;
    ++unit;
  }
  std::string text = std::to_string(whole);
  if (unit != 0) text += "." + std::to_string(rest * 10 / 1024);
  return text + " " + std::string(units[unit]);
}

/// Writes plan tables. Not for every step: it builds strings.
class plan_printer {
 public:
  static constexpr std::size_t most_columns = 8;  // more ranks than this are shown as smallest, largest, sum

  explicit plan_printer(const plan_table& table) : table_(table) {
    for (const plan_row& row : table.rows) {
      ranks_ = std::max(ranks_, row.bytes.size());
      if (std::find(tiers_.begin(), tiers_.end(), row.tier) == tiers_.end()) tiers_.push_back(row.tier);
    }
  }

  /// True when every tier of every rank is within its budget.
  [[nodiscard]] bool fits() const {
    for (const plan_budget& budget : table_.budgets) {
      for (std::uint64_t bytes : total(budget.tier)) {
        if (bytes > budget.bytes) return false;
      }
    }
    return true;
  }

  /// The table, then for each tier that does not fit the ranks and bytes that are short, then what would help.
  [[nodiscard]] std::string text() const {
    std::vector<std::vector<std::string>> lines{heading()};
    for (std::string_view tier : tiers_) {
      for (const plan_row& row : table_.rows) {
        if (row.tier == tier) lines.push_back(cells(tier, row.purpose, row.bytes));
      }
      lines.push_back(cells(tier, "total", total(tier)));
      for (const plan_budget& budget : table_.budgets) {
        if (budget.tier == tier) lines.push_back(cells(tier, "budget", std::vector(ranks_, budget.bytes)));
      }
    }
    return aligned(lines) + shortages();
  }

 private:
  [[nodiscard]] std::vector<std::uint64_t> total(std::string_view tier) const {
    std::vector<std::uint64_t> folded(ranks_, 0);
    for (const plan_row& row : table_.rows) {
      if (row.tier != tier) continue;
      for (std::size_t rank = 0; rank < row.bytes.size(); ++rank) folded[rank] += row.bytes[rank];
    }
    return folded;
  }

  [[nodiscard]] std::vector<std::string> heading() const {
    std::vector<std::string> line{"tier", "bytes for"};
    if (ranks_ > most_columns) {
      line.insert(line.end(), {"smallest", "largest", "all ranks"});
    } else {
      for (std::size_t rank = 0; rank < ranks_; ++rank) line.push_back("rank " + std::to_string(rank));
    }
    return line;
  }

  [[nodiscard]] std::vector<std::string> cells(std::string_view tier, std::string_view purpose,
                                               std::span<const std::uint64_t> bytes) const {
    std::vector<std::string> line{std::string(tier), std::string(purpose)};
    if (ranks_ > most_columns) {
      std::uint64_t smallest = bytes.size() < ranks_ ? 0 : bytes[0];
      std::uint64_t largest = 0;
      std::uint64_t total = 0;
      for (std::uint64_t each : bytes) {
        smallest = std::min(smallest, each);
        largest = std::max(largest, each);
        total += each;
      }
      for (std::uint64_t each : {smallest, largest, total}) line.push_back(std::to_string(each));
    } else {
      for (std::size_t rank = 0; rank < ranks_; ++rank) {
        line.push_back(std::to_string(rank < bytes.size() ? bytes[rank] : 0));
      }
    }
    return line;
  }

  // Words to the left, numbers to the right.
  [[nodiscard]] static std::string aligned(const std::vector<std::vector<std::string>>& lines) {
    std::vector<std::size_t> widths(lines[0].size(), 0);
    for (const auto& line : lines) {
      for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    }
    std::string text;
    for (const auto& line : lines) {
      for (std::size_t i = 0; i < line.size(); ++i) {
        const std::string space(widths[i] - line[i].size(), ' ');
        if (i != 0) text += "  ";
        text += i < 2 ? line[i] + space : space + line[i];
      }
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
    return text;
  }

  [[nodiscard]] std::string shortages() const {
    std::string text;
    for (const plan_budget& budget : table_.budgets) {
      const std::vector<std::uint64_t> needs = total(budget.tier);
      const auto most = std::max_element(needs.begin(), needs.end());
      if (most == needs.end() || *most <= budget.bytes) continue;
      text += std::string(budget.tier) + ": rank " + std::to_string(most - needs.begin()) + " needs " +
              std::to_string(*most) + " bytes (" + bytes_text(*most) + "), the budget is " +
              std::to_string(budget.bytes) + " (" + bytes_text(budget.bytes) + "): short by " +
              std::to_string(*most - budget.bytes) + " (" + bytes_text(*most - budget.bytes) + ")\n";
    }
    if (text.empty() || table_.suggestions.empty()) return text;
    text += "what would need less:\n";
    for (std::string_view suggestion : table_.suggestions) text += "  - " + std::string(suggestion) + "\n";
    return text;
  }

  plan_table table_;
  std::vector<std::string_view> tiers_;
  std::size_t ranks_ = 0;
};

}  // namespace belay::inline BELAY_ABI
