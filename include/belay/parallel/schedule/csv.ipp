// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reads a schedule from its table.
#pragma once

#include <utility>
#include <vector>

#include "belay/parallel/schedule/csv.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

BELAY_DECL dynamic_table csv_reader::read() {
  next_row();
  if (next_cell() != "belay-schedule 1") refuse("expected 'belay-schedule 1', found '" + shown() + "'");
  std::string name(next_cell());
  if (name.find('\r') != std::string::npos) refuse("the schedule's name holds a line break");
  const std::size_t stages = size("the number of stages", most_stages);
  const std::size_t micro_batches = size("the number of micro-batches", most_micro_batches);
  if (stages * micro_batches > most_cells) refuse("stages times micro-batches must not exceed 16777216");
  if (more_cells_) refuse("the first row ends after the number of micro-batches");
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  for (std::size_t stage = 0; stage < stages; ++stage) {
    if (rest_.empty()) {
      ++row_;
      column_ = 1;
      refuse("the row of stage " + std::to_string(stage) + " is missing; the first row announces " +
             std::to_string(stages) + " stages");
    }
    next_row();
    if (trimmed(line_).empty()) more_cells_ = false;
    while (more_cells_) actions.push_back(parse(next_cell()));
    offsets.push_back(actions.size());
  }
  while (!rest_.empty()) {
    next_row();
    if (!trimmed(next_cell()).empty()) refuse("there are more rows than the first row announces stages");
  }
  return {std::move(name), stages, micro_batches, std::move(actions), std::move(offsets)};
}

BELAY_DECL std::string_view csv_reader::trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

BELAY_DECL void csv_reader::next_row() {
  const std::size_t end = rest_.find('\n');
  line_ = rest_.substr(0, end);
  rest_ = end == std::string_view::npos ? std::string_view{} : rest_.substr(end + 1);
  ++row_;
  column_ = 0;
  more_cells_ = true;
}

BELAY_DECL std::string_view csv_reader::next_cell() {
  ++column_;
  if (!more_cells_) {
    cell_ = {};
    return cell_;
  }
  const std::size_t end = line_.find(',');
  cell_ = trimmed(line_.substr(0, end));
  more_cells_ = end != std::string_view::npos;
  line_ = more_cells_ ? line_.substr(end + 1) : std::string_view{};
  return cell_;
}

BELAY_DECL void csv_reader::refuse(const std::string& why) const {
  throw input_error("schedule CSV, row " + std::to_string(row_) + ", column " + std::to_string(column_) + ": " + why,
                    at_);
}

BELAY_DECL void csv_reader::refuse_cell() const {
  refuse("'" + shown() +
         "' is no action; expected F, B, I or W and a micro-batch, such as F0, or transfers, such "
         "as SA0>1 or SA1>1+RG0<1");
}

BELAY_DECL std::string csv_reader::shown() const {
  return std::string(cell_.substr(0, 40)) + (cell_.size() > 40 ? "..." : "");
}

BELAY_DECL std::size_t csv_reader::size(const char* what, std::size_t most) {
  std::string_view text = next_cell();
  std::size_t value = 0;
  if (!take_number(text, most, value) || !text.empty() || value == 0) {
    refuse(std::string(what) + " must be between 1 and " + std::to_string(most) + ", not '" + shown() + "'");
  }
  return value;
}

BELAY_DECL bool csv_reader::take_number(std::string_view& text, std::size_t most, std::size_t& value) {
  value = 0;
  std::size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    value = value * 10 + static_cast<std::size_t>(text[digits] - '0');
    if (value > most) return false;
  }
  text.remove_prefix(digits);
  return digits > 0;
}

BELAY_DECL bool csv_reader::take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

BELAY_DECL bool csv_reader::take_micro_batch(std::string_view& text, std::uint32_t& micro_batch, std::uint16_t& chunk) {
  std::size_t value = 0;
  if (!take_number(text, most_micro_batches, value)) return false;
  micro_batch = static_cast<std::uint32_t>(value);
  chunk = 0;
  if (!take(text, '.')) return true;
  if (!take_number(text, 65'535, value)) return false;
  chunk = static_cast<std::uint16_t>(value);
  return true;
}

BELAY_DECL action csv_reader::parse(std::string_view text) const {
  action made;
  const std::size_t kind = text.empty() ? std::string_view::npos : std::string_view("FBIW").find(text.front());
  if (kind != std::string_view::npos) {
    made.kind = static_cast<action_kind>(kind);
    text.remove_prefix(1);
    if (!take_micro_batch(text, made.micro_batch, made.chunk) || !text.empty()) refuse_cell();
    return made;
  }
  made.kind = action_kind::exchange;
  do {
    if (made.transfer_count == action::most_transfers) refuse("an exchange holds at most 4 transfers");
    transfer& moved = made.group[made.transfer_count++];
    if (take(text, 'R')) {
      moved.direction = transfer_direction::receive;
    } else if (!take(text, 'S')) {
      refuse_cell();
    }
    if (take(text, 'G')) {
      moved.what = payload::gradient;
    } else if (!take(text, 'A')) {
      refuse_cell();
    }
    std::size_t peer = 0;
    if (!take_micro_batch(text, moved.micro_batch, moved.chunk) ||
        !take(text, moved.direction == transfer_direction::send ? '>' : '<') || !take_number(text, most_stages, peer)) {
      refuse_cell();
    }
    moved.peer = static_cast<std::uint32_t>(peer);
  } while (take(text, '+'));
  if (!text.empty()) refuse_cell();
  return made;
}

BELAY_DECL dynamic_table from_csv(std::string_view text, where at) { return csv_reader(text, at).read(); }

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
