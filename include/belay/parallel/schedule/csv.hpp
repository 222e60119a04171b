// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tables as CSV, for editors and spreadsheets. After the first row there is one row for each stage, with one cell for
// each action:
//
//   belay-schedule 1,1f1b,2,2            format, name, stages, micro-batches
//   F0,SA0>1,F1,SA1>1+RG0<1,B0,RG1<1,B1
//   RA0<0,F0,B0,SG0>0+RA1<0,F1,B1,SG1>0
//
// F, B, I, W: forward, backward, input gradient, weight gradient of a micro-batch. S, R: send, receive. A, G: the
// activation or the gradient of a micro-batch. > to, < from a stage. + joins transfers of one exchange. A chunk other
// than 0 follows its micro-batch after a dot: F3.1. A table that was read is not proven: call `belay::proof`.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// The table as CSV. Throws usage_error where its name holds a comma or a line break.
template <any_table Table>
[[nodiscard]] std::string to_csv(const Table& table, where at = where::current()) {
  const auto numbered = [](std::size_t micro_batch, std::size_t chunk) {
    return std::to_string(micro_batch) + (chunk == 0 ? "" : "." + std::to_string(chunk));
  };
  if (table.name().find_first_of(",\r\n") != std::string_view::npos) {
    throw usage_error("a schedule's name must not hold a comma or a line break to be written as CSV", at);
  }
  std::string text = "belay-schedule 1," + std::string(table.name()) + "," + std::to_string(table.stages()) + "," +
                     std::to_string(table.micro_batches()) + "\n";
  for (std::size_t stage = 0; stage < table.stages(); ++stage) {
    const char* separator = "";
    for (const action& now : table.actions(stage)) {
      text += separator;
      separator = ",";
      if (!now.is_exchange()) {
        text += "FBIW"[static_cast<std::size_t>(now.kind)] + numbered(now.micro_batch, now.chunk);
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
  static std::string_view trimmed(std::string_view text);

  void next_row();

  std::string_view next_cell();

  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void refuse_cell() const;
  [[nodiscard]] std::string shown() const;

  std::size_t size(const char* what, std::size_t most);

  // Reads digits at the front; false where there are none or their value exceeds `most`.
  static bool take_number(std::string_view& text, std::size_t most, std::size_t& value);
  static bool take(std::string_view& text, char expected);
  static bool take_micro_batch(std::string_view& text, std::uint32_t& micro_batch, std::uint16_t& chunk);

  [[nodiscard]] action parse(std::string_view text) const;

  std::string_view rest_;
  where at_;
  std::string_view line_;
  std::string_view cell_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  bool more_cells_ = false;
};

/// Reads what `to_csv` writes. Throws input_error with row and column, counted from 1.
[[nodiscard]] BELAY_DECL dynamic_table from_csv(std::string_view text, where at = where::current());

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/schedule/csv.ipp"  // IWYU pragma: export
#endif
