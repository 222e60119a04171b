// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any text as a schedule: refused with row and column, or written again as it was, proven, and drawn.
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/csv.hpp"
#include "belay/report/schedule_chart.hpp"
#include "fuzz/support/target.hpp"

namespace schedule = belay::schedule;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::refuses_with<belay::input_error, belay::usage_error>([&] {
    const schedule::dynamic_table table = schedule::from_csv(fuzz::text_of(data, size));
    const std::string text = schedule::to_csv(table);
    const schedule::dynamic_table back = schedule::from_csv(text);
    fuzz::expect(back == table && back.name() == table.name(), "a table that was read is written as it is");
    fuzz::expect(schedule::to_csv(back) == text, "a table is written in one way");
    if (table.stages() * table.micro_batches() > 4096) return;  // a proof takes room for each
    const auto known = belay::proof(table);
    fuzz::expect(known.valid() == (known.reason.kind == schedule::fault_kind::none), "what is not valid has a reason");
    if (!known.valid()) return;
    const std::string drawn = schedule::draw_text(table);
    fuzz::expect(belay::printable_lines(drawn) == drawn, "a drawing can be shown");
    fuzz::expect(!schedule::draw_svg(table).empty(), "a proven table can be drawn");
  });
  return 0;
}
