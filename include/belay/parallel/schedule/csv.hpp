// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tables as CSV, for editors and spreadsheets. After the first row there is one row for each rank, with one cell for
// each action:
//
//   belay-schedule 1,1f1b,2,2            format, name, ranks, micro-batches
//   F0,SA0>1,F1,SA1>1,RG0<1,B0,RG1<1,B1
//   RA0<0,F0,RA1<0,B0,SG0>0,F1,B1,SG1>0
//
//   belay-schedule 2,zb-v,2,2,2,v        and the stages of each rank, and where they lie: loop, v, or by rank
//
// F, B, I, W: forward, backward, input gradient, weight gradient of a micro-batch. F4&B1: a pair. S, R: send, receive.
// A, G: the activation or the gradient of a micro-batch. > to, < from a rank. + joins transfers of one exchange. A
// chunk other than 0 follows its micro-batch after a dot: F3.1. O, R, K: offload, reload, recompute of a micro-batch.
// U, S, G: gather, release, reduce of a chunk: U, U.1. Where stages lie by rank, the sixth cell lists them: those of
// rank 0, a semicolon, those of rank 1: "0 3;1 2".
//
// PyTorch's tables of computes are read too: no first row, a stage before its letter and a micro-batch after it, empty
// cells where a rank waits, and pairs: 0F1, 3I0, (0F1;3B0)OVERLAP_F_B, with 0UNSHARD, 0RESHARD and 0REDUCE_GRAD. Where
// a table of several ranks has no transfers they are found (`with_exchanges`). A table that was read is not proven:
// call `belay::proof`.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// Where the stages of a table lie, as CSV has it.
template <any_table Table>
[[nodiscard]] std::string placement_text(const Table& table) {
  std::string listed;
  bool loops = true, turns = true;
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    for (std::size_t chunk = 0; chunk < table.chunks(); ++chunk) {
      const std::size_t stage = table.stage(rank, chunk);
      loops = loops && stage == stage_in_loop(rank, chunk, table.ranks());
      turns = turns && stage == stage_in_v(rank, chunk, table.ranks());
      listed += (chunk > 0 ? " " : rank > 0 ? ";" : "") + std::to_string(stage);
    }
  }
  return loops ? "loop" : turns ? "v" : listed;
}

/// The table as CSV. Throws usage_error where its name holds a comma or a line break.
template <any_table Table>
[[nodiscard]] std::string to_csv(const Table& table, where at = where::current()) {
  const auto numbered = [](std::size_t micro_batch, std::size_t chunk) {
    return std::to_string(micro_batch) + (chunk == 0 ? "" : "." + std::to_string(chunk));
  };
  if (table.name().find_first_of(",\r\n") != std::string_view::npos) {
    throw usage_error("a schedule's name must not hold a comma or a line break to be written as CSV", at);
  }
  std::string text = table.chunks() == 1 && placement_text(table) == "loop" ? "belay-schedule 1," : "belay-schedule 2,";
  text += std::string(table.name()) + "," + std::to_string(table.ranks()) + "," + std::to_string(table.micro_batches());
  if (text.starts_with("belay-schedule 2")) text += "," + std::to_string(table.chunks()) + "," + placement_text(table);
  text += "\n";
  for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
    const char* separator = "";
    for (const action& now : table.actions(rank)) {
      text += separator;
      separator = now.paired ? "&" : ",";
      if (is_of_chunk(now.kind)) {
        text += letter_of(now.kind) + (now.chunk == 0 ? "" : "." + std::to_string(now.chunk));
        continue;
      }
      if (!now.is_exchange()) {
        text += letter_of(now.kind) + numbered(now.micro_batch, now.chunk);
        continue;
      }
      const char* join = "";
      for (const transfer& moved : now.transfers()) {
        const bool sends = moved.direction == transfer_direction::send;
        text += join;
        join = "+";
        text += sends ? 'S' : 'R';
        text += moved.what == payload::activation ? 'A' : 'G';
        text += numbered(moved.micro_batch, moved.chunk) + (sends ? ">" : "<") + std::to_string(moved.peer);
      }
    }
    text += "\n";
  }
  return text;
}

/// Reads one table. Every error names row and column, counted from 1.
class csv_reader {
 public:
  csv_reader(std::string_view text, where at) : rest_(text), at_(at) {}

  [[nodiscard]] dynamic_table read();

 private:
  // The rows after one that tells the sizes; rows of PyTorch's computes, of which the first is read.
  [[nodiscard]] dynamic_table read_rows(std::string name, std::size_t ranks, std::size_t micro_batches,
                                        std::size_t chunks, const std::vector<std::size_t>& stages);
  [[nodiscard]] dynamic_table read_computes();
  [[nodiscard]] static dynamic_table connected(dynamic_table table);
  [[nodiscard]] std::vector<std::size_t> read_placement(std::size_t ranks, std::size_t chunks);

  static std::string_view trimmed(std::string_view text);

  void next_row();

  std::string_view next_cell();

  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void refuse_cell() const;
  [[noreturn]] void refuse_compute() const;
  [[noreturn]] void refuse_row(std::size_t rank, const std::string& why) const;
  [[nodiscard]] std::string shown() const;

  std::size_t size(const char* what, std::size_t most);

  // Reads digits at the front; false where there are none or their value exceeds `most`.
  static bool take_number(std::string_view& text, std::size_t most, std::size_t& value);
  static bool take(std::string_view& text, char expected);
  static bool take_micro_batch(std::string_view& text, std::uint32_t& micro_batch, std::uint16_t& chunk);
  static bool take_chunk(std::string_view& text, std::uint16_t& chunk);
  // An action of a chunk by PyTorch's name; an exchange stands for none.
  static action_kind kind_of_chunk(std::string_view name);

  static constexpr std::array<action_kind, 10> letter_kinds = {
      action_kind::forward, action_kind::backward, action_kind::input_gradient, action_kind::weight_gradient,
      action_kind::offload, action_kind::reload,   action_kind::recompute,      action_kind::gather,
      action_kind::release, action_kind::reduce};

  void parse_cell(std::string_view text, std::vector<action>& into) const;
  [[nodiscard]] action parse(std::string_view text) const;
  // A compute of a stage, which the chunk of `made` holds.
  struct stage_compute {
    std::size_t stage;
    action made;
  };
  void parse_computes(std::string_view text, std::vector<stage_compute>& into) const;

  std::string_view rest_;
  where at_;
  std::string_view line_;
  std::string_view cell_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  bool more_cells_ = false;
};

/// Reads what `to_csv` writes, and PyTorch's tables of computes. Throws input_error with row and column, counted from
/// 1, and usage_error where a table without transfers has none that would let it run.
[[nodiscard]] BELAY_DECL dynamic_table from_csv(std::string_view text, where at = where::current());

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/schedule/csv.ipp"  // IWYU pragma: export
#endif
