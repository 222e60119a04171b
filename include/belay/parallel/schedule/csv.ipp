// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Reads a schedule from its table.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/csv.hpp"
#include "belay/parallel/schedule/rules.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

BELAY_DECL dynamic_table csv_reader::read() {
  next_row();
  const std::string_view front = trimmed(line_.substr(0, line_.find(',')));
  if (!front.empty() && (front.front() == '(' || (front.front() >= '0' && front.front() <= '9')))
    return read_computes();
  const std::string_view format = next_cell();
  const bool placed = format == "belay-schedule 2";
  if (!placed && format != "belay-schedule 1") refuse("expected 'belay-schedule 1', found '" + shown() + "'");
  std::string name(next_cell());
  if (name.find('\r') != std::string::npos) refuse("the schedule's name holds a line break");
  const std::size_t ranks = size("the number of stages", most_stages);
  const std::size_t micro_batches = size("the number of micro-batches", most_micro_batches);
  const std::size_t chunks = placed ? size("the number of chunks", most_stages) : 1;
  if (ranks * chunks > most_stages || ranks * chunks * micro_batches > most_cells)
    refuse("stages times micro-batches must not exceed 16777216");
  const std::vector<std::size_t> stages = placed ? read_placement(ranks, chunks) : std::vector<std::size_t>();
  if (more_cells_ && placed) refuse("the first row ends after the placement");
  if (more_cells_) refuse("the first row ends after the number of micro-batches");
  return read_rows(std::move(name), ranks, micro_batches, chunks, stages);
}

BELAY_DECL std::vector<std::size_t> csv_reader::read_placement(std::size_t ranks, std::size_t chunks) {
  std::string_view text = next_cell();
  std::vector<std::size_t> stages;
  std::vector<bool> held(ranks * chunks);
  const bool turns = text == "v", known = turns || text == "loop";
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      std::size_t stage = turns ? stage_in_v(rank, chunk, ranks) : stage_in_loop(rank, chunk, ranks);
      if (!known && ((chunk > 0 && !take(text, ' ')) || (chunk == 0 && rank > 0 && !take(text, ';')) ||
                     !take_number(text, ranks * chunks - 1, stage) || held[stage]))
        refuse("'" + shown() + "' is no placement; expected loop, v, or each stage once, by rank: 0 3;1 2");
      held[stage] = true;
      stages.push_back(stage);
    }
  }
  if (!known && !text.empty()) refuse("'" + shown() + "' is no placement; it lists more stages than there are");
  return stages;
}

BELAY_DECL dynamic_table csv_reader::read_rows(std::string name, std::size_t ranks, std::size_t micro_batches,
                                               std::size_t chunks, const std::vector<std::size_t>& stages) {
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  bool exchanges = false;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (rest_.empty()) {
      ++row_;
      column_ = 1;
      refuse("the row of stage " + std::to_string(rank) + " is missing; the first row announces " +
             std::to_string(ranks) + " stages");
    }
    next_row();
    if (trimmed(line_).empty()) more_cells_ = false;
    while (more_cells_) {
      parse_cell(next_cell(), actions);
      exchanges = exchanges || actions.back().is_exchange();
    }
    offsets.push_back(actions.size());
  }
  while (!rest_.empty()) {
    next_row();
    if (!trimmed(next_cell()).empty()) refuse("there are more rows than the first row announces stages");
  }
  const auto stage_of = [&](std::size_t rank, std::size_t chunk, std::size_t) {
    return stages.empty() ? rank : stages[rank * chunks + chunk];
  };
  dynamic_table table(std::move(name), ranks, micro_batches, std::move(actions), std::move(offsets), chunks, stage_of);
  return exchanges ? std::move(table) : connected(std::move(table));
}

// With exchanges, where several ranks have all computes in an order that is possible. Else it gets none: its proof says
// what is wrong, with the numbers of the file's actions.
BELAY_DECL dynamic_table csv_reader::connected(dynamic_table table) {
  if (table.ranks() == 1) return table;
  const fault_class wrong = class_of(proof(table).reason.kind);
  return wrong != fault_class::none && wrong <= fault_class::beside ? std::move(table) : with_exchanges(table);
}

BELAY_DECL action_kind csv_reader::kind_of_chunk(std::string_view name) {
  return name == "UNSHARD"       ? action_kind::gather
         : name == "RESHARD"     ? action_kind::release
         : name == "REDUCE_GRAD" ? action_kind::reduce
                                 : action_kind::exchange;
}

BELAY_DECL void csv_reader::parse_cell(std::string_view text, std::vector<action>& into) const {
  const std::size_t pair = text.find('&');
  into.push_back(parse(text.substr(0, pair)));
  if (pair == std::string_view::npos) return;
  const action beside = parse(text.substr(pair + 1));
  if (into.back().kind != action_kind::forward ||
      (beside.kind != action_kind::backward && beside.kind != action_kind::input_gradient))
    refuse("a pair is a forward and a backward, or an input gradient, such as F4&B1");
  into.back().beside_next();
  into.push_back(beside);
}

BELAY_DECL void csv_reader::parse_computes(std::string_view text, std::vector<stage_compute>& into) const {
  std::string_view rest = text;
  const bool pair = take(rest, '(');
  std::size_t count = 0;
  do {
    ++count;
    stage_compute next{};
    if (!take_number(rest, most_stages, next.stage) || rest.empty()) refuse_compute();
    std::size_t micro_batch = 0;
    if (const action_kind of_chunk = kind_of_chunk(rest); is_of_chunk(of_chunk)) {
      rest = {};
      next.made = action::of_chunk(of_chunk);
    } else {
      const std::size_t kind = std::string_view("FBIW").find(rest.front());
      if (kind == std::string_view::npos) refuse_compute();
      rest.remove_prefix(1);
      if (!take_number(rest, most_micro_batches - 1, micro_batch)) refuse_compute();
      next.made = action::compute(static_cast<action_kind>(kind), micro_batch);
    }
    into.push_back(next);
  } while (pair && take(rest, ';'));
  if (rest != (pair ? ")OVERLAP_F_B" : "")) refuse_compute();
  if (!pair) return;
  const action_kind beside = into.back().made.kind;
  if (count != 2 || into[into.size() - 2].made.kind != action_kind::forward ||
      (beside != action_kind::backward && beside != action_kind::input_gradient))
    refuse("a pair is a forward and a backward, or an input gradient, such as (0F1;3B0)OVERLAP_F_B");
  into[into.size() - 2].made.beside_next();
}

BELAY_DECL dynamic_table csv_reader::read_computes() {
  std::vector<std::vector<stage_compute>> rows;
  std::size_t stages = 1, micro_batches = 1;
  while (true) {
    if (!trimmed(line_).empty()) {
      std::vector<stage_compute>& row = rows.emplace_back();
      while (more_cells_) {
        const std::string_view cell = next_cell();
        if (!cell.empty()) parse_computes(cell, row);
      }
      for (const stage_compute& each : row) {
        stages = greater_of(stages, each.stage + 1);
        micro_batches = greater_of<std::size_t>(micro_batches, each.made.micro_batch + 1);
      }
    }
    if (rest_.empty()) break;
    next_row();
  }
  const std::size_t chunks = stages / rows.size();
  if (stages > most_cells / micro_batches) refuse("stages times micro-batches must not exceed 16777216");
  if (stages % rows.size() != 0)
    refuse("the table names " + std::to_string(stages) + " stages in " + std::to_string(rows.size()) +
           " rows: each rank holds as many stages as any other");
  std::vector<std::size_t> placed;  // by rank: its stages in rising order
  std::vector<action> actions;
  std::vector<std::size_t> offsets(1);
  std::vector<bool> held(stages);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    std::vector<std::size_t> own;
    for (const stage_compute& each : rows[rank]) own.push_back(each.stage);
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    for (const std::size_t stage : own) {
      if (held[stage]) refuse_row(rank, "stage " + std::to_string(stage) + " is in two rows");
      held[stage] = true;
    }
    if (own.size() != chunks)
      refuse_row(rank,
                 "the row has " + std::to_string(own.size()) + " stages, and a rank holds " + std::to_string(chunks));
    for (stage_compute each : rows[rank]) {
      each.made.chunk = static_cast<std::uint16_t>(std::lower_bound(own.begin(), own.end(), each.stage) - own.begin());
      actions.push_back(each.made);
    }
    placed.insert(placed.end(), own.begin(), own.end());
    offsets.push_back(actions.size());
  }
  const auto stage_of = [&](std::size_t rank, std::size_t chunk, std::size_t) { return placed[rank * chunks + chunk]; };
  return connected({"csv", rows.size(), micro_batches, std::move(actions), std::move(offsets), chunks, stage_of});
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
         "' is no action; expected F, B, I, W, O, R or K and a micro-batch, such as F0, U, S or G, or transfers, such "
         "as SA0>1 or SA1>1+RG0<1");
}

BELAY_DECL void csv_reader::refuse_compute() const {
  refuse("'" + shown() +
         "' is no compute; expected a stage, F, B, I or W, and a micro-batch, such as 0F1, or a pair, "
         "such as (0F1;3B0)OVERLAP_F_B");
}

BELAY_DECL void csv_reader::refuse_row(std::size_t rank, const std::string& why) const {
  throw input_error("schedule CSV, row of rank " + std::to_string(rank) + ": " + why, at_);
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
  return text.empty() || text.front() != '.' || take_chunk(text, chunk);
}

BELAY_DECL bool csv_reader::take_chunk(std::string_view& text, std::uint16_t& chunk) {
  std::size_t value = 0;
  if (!take(text, '.') || !take_number(text, 65'535, value)) return false;
  chunk = static_cast<std::uint16_t>(value);
  return true;
}

BELAY_DECL action csv_reader::parse(std::string_view text) const {
  action made;
  made.kind = action_kind::exchange;
  // R and S with A or G after them are transfers.
  const bool moves = text.size() > 1 && (text[1] == 'A' || text[1] == 'G');
  for (const action_kind kind : letter_kinds)
    if (!moves && made.is_exchange() && take(text, letter_of(kind))) made.kind = kind;
  if (!made.is_exchange()) {
    const bool numbered = is_of_chunk(made.kind) ? text.empty() || take_chunk(text, made.chunk)
                                                 : take_micro_batch(text, made.micro_batch, made.chunk);
    if (!numbered || !text.empty()) refuse_cell();
    return made;
  }
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
