// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How large the table of the gradient norm is, whatever the model.
#include "belay/train/norm_table.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "../parallel/support/fake_group.hpp"
#include "belay/kernel/reduce.hpp"

namespace {

using belay::norm_table;
using belay::ownership_unit;
using belay::parameter_chunk;

constexpr std::size_t eight_mebibytes = std::size_t{8} << 20;

// A model of 70 B parameters with 61 layers of 256 experts, which `parts` ranks divide.
norm_table large_model(std::size_t parts, std::size_t first_layer = 0, std::size_t last_layer = 61) {
  const std::size_t hidden = 2048, width = 720, experts = 256, vocabulary = 131072;
  norm_table table;
  if (first_layer == 0) table.add(vocabulary * hidden);
  for (std::size_t layer = first_layer; layer < last_layer; ++layer) {
    for (int matrix = 0; matrix < 4; ++matrix) table.add(hidden * hidden);
    for (int norm = 0; norm < 2; ++norm) table.add(hidden);
    table.add(hidden * experts);
    for (int matrix = 0; matrix < 3; ++matrix)
      table.add(std::vector<std::size_t>(parts, experts / parts * hidden * width));
  }
  if (last_layer == 61) table.add(vocabulary * hidden);
  return table;
}

std::size_t elements_of(const norm_table& table, std::size_t parts) {
  std::size_t elements = 0;
  for (std::size_t p = 0; p < table.parameters(); ++p)
    for (std::size_t part = 0; part < parts; ++part) elements += table.has(p, part) ? table.elements(p, part) : 0;
  return elements;
}

}  // namespace

TEST_CASE("the table of 70 B parameters, 61 layers and 256 experts on 1,024 ranks is at most 8 MiB a rank") {
  for (std::size_t parts : {1U, 16U, 256U}) {
    const norm_table table = large_model(parts);
    CHECK(elements_of(table, parts) > std::size_t{70'000'000'000});
    CHECK(table.bytes() <= eight_mebibytes);
    CHECK(table.unit().k() == 5);                                                                // whatever the parts
    CHECK(elements_of(table, parts) / parameter_chunk * sizeof(double) > 16 * eight_mebibytes);  // with k = 0
    std::printf("norm table: %zu parameters, experts in %zu parts, 1024 ranks: k = %u, %zu bytes a rank\n",
                elements_of(table, parts), parts, table.unit().k(), table.bytes());
  }
}

TEST_CASE("k is the smallest with which the table needs at most 8 MiB") {
  const std::size_t most = norm_table::most_entries * parameter_chunk;
  norm_table exact;
  exact.add(most - 3 * parameter_chunk - 1);
  CHECK(exact.unit() == ownership_unit());
  exact.add(0);
  exact.add(1);
  exact.add(2 * parameter_chunk - 1);
  CHECK(exact.unit().k() == 0);
  CHECK(exact.bytes() == eight_mebibytes);
  exact.add(1);
  CHECK(exact.unit().k() == 1);
  CHECK(exact.bytes() <= eight_mebibytes / 2 + 4 * sizeof(double));
  norm_table again;  // in another order
  again.add(1);
  again.add(most);
  CHECK(again.unit().k() == 1);
  norm_table vast;
  for (int p = 0; p < 7; ++p) vast.add(std::size_t{1} << 60U);
  CHECK(vast.bytes() <= eight_mebibytes);
}

TEST_CASE("entries of parts stand one behind another, at every unit") {
  for (unsigned k : {0U, 1U, 3U}) {
    norm_table table;
    const std::vector<std::vector<std::size_t>> parameters{{5}, {4096, 8192, 1}, {0}, {100000, 0, 40000}};
    for (std::size_t p = 0; p + 1 < parameters.size(); ++p) table.add(parameters[p]);
    table.widen(ownership_unit(k));
    table.add(parameters.back());
    table.widen(ownership_unit(0));  // never narrower
    CHECK(table.unit().k() == k);
    std::size_t next = 0;
    for (std::size_t p = 0; p < parameters.size(); ++p)
      for (std::size_t part = 0; part < parameters[p].size(); ++part) {
        CHECK(table.first_entry(p, part) == next);
        next += (parameters[p][part] + (parameter_chunk << k) - 1) / (parameter_chunk << k);
      }
    CHECK(table.entries() == next);
  }
}

TEST_CASE("tables of the stages of a pipeline take the unit of the whole model") {
  const unsigned whole = large_model(16).unit().k();
  fake::shared_state shared(3);
  std::vector<fake::queue> queues(3);
  fake::run_ranks(3, [&](int rank) {
    const auto stage = static_cast<std::size_t>(rank);
    norm_table table = large_model(16, stage * 20, stage == 2 ? 61 : stage * 20 + 20);
    CHECK(table.unit().k() < whole);
    table.widen(fake::group(shared, queues[stage], rank));
    CHECK(table.unit().k() == whole);
    CHECK(table.bytes() <= eight_mebibytes);
  });
}
