// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/train/plan_table.hpp"

#include <doctest/doctest.h>

#include <array>

namespace {

using bytes3 = std::array<std::uint64_t, 3>;

}  // namespace

TEST_CASE("a plan that fits is a table with totals and no complaint") {
  const bytes3 parameters{1000, 1000, 500};
  const bytes3 activations{24, 48, 12};
  const bytes3 staging{7, 7, 7};
  const std::array rows{belay::plan_row{"device", "parameters", parameters},
                        belay::plan_row{"host", "staging", staging},
                        belay::plan_row{"device", "activations", activations}};
  const std::array budgets{belay::plan_budget{"device", 1048}};
  const std::array<std::string_view, 1> suggestions{"never shown"};
  const belay::plan_printer printer({rows, budgets, suggestions});
  CHECK(printer.fits());
  CHECK(printer.text() ==
        "tier    bytes for    rank 0  rank 1  rank 2\n"
        "device  parameters     1000    1000     500\n"
        "device  activations      24      48      12\n"
        "device  total          1024    1048     512\n"
        "device  budget         1048    1048    1048\n"
        "host    staging           7       7       7\n"
        "host    total             7       7       7\n");
}

TEST_CASE("a refusal says which rank is short by how much, and what would help") {
  const bytes3 parameters{3 << 20, 5 << 20, 0};
  const std::array rows{belay::plan_row{"device", "parameters", parameters}};
  const std::array budgets{belay::plan_budget{"device", (5 << 20) - 1}, belay::plan_budget{"host", 0}};
  const std::array<std::string_view, 2> suggestions{"--micro-batch-size 2", "--recompute full"};
  const belay::plan_printer printer({rows, budgets, suggestions});
  CHECK(!printer.fits());
  const std::string text = printer.text();
  CHECK(text.find("device: rank 1 needs 5242880 bytes (5.0 MiB), the budget is 5242879 (5.0 MiB): short by 1 (1 B)\n"
                  "what would need less:\n  - --micro-batch-size 2\n  - --recompute full\n") != std::string::npos);
  CHECK(text.find("host:") == std::string::npos);
}

TEST_CASE("many ranks are summed up") {
  std::array<std::uint64_t, 9> bytes{9, 2, 3, 4, 5, 6, 7, 8, 1};
  const bytes3 few{10, 10, 10};  // the other ranks have none
  const std::array rows{belay::plan_row{"device", "parameters", bytes}, belay::plan_row{"device", "few", few}};
  const std::array budgets{belay::plan_budget{"device", 20}};
  const std::string text = belay::plan_printer({rows, budgets}).text();
  CHECK(text.find("smallest  largest  all ranks") != std::string::npos);
  CHECK(text.find("device  parameters         1        9         45\n"
                  "device  few                0       10         30\n"
                  "device  total              1       19         75\n"
                  "device  budget            20       20        180\n") != std::string::npos);
}

TEST_CASE("an empty plan is a heading") {
  CHECK(belay::plan_printer(belay::plan_table{}).text() == "tier  bytes for\n");
}

TEST_CASE("bytes are written in the unit that fits") {
  CHECK(belay::bytes_text(0) == "0 B");
  CHECK(belay::bytes_text(1023) == "1023 B");
  CHECK(belay::bytes_text(1536) == "1.5 KiB");
  CHECK(belay::bytes_text(32'679'744) == "31.2 MiB");  // 31.166
  CHECK(belay::bytes_text(32'661'312) == "31.1 MiB");  // 31.148
  CHECK(belay::bytes_text((1U << 20U) - 52) == "1023.9 KiB");
  CHECK(belay::bytes_text((1U << 20U) - 51) == "1.0 MiB");
  CHECK(belay::bytes_text(~std::uint64_t{0}) == "16.0 EiB");
}
