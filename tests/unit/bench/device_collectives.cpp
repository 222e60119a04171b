// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The table of collectives over a device: over a fake NCCL every operation has its columns, and what arrives is right;
// an operation that gives something else is counted.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/collective_table.hpp"
#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"

namespace {

using enum bench::device_operation;

struct broken_nccl : fakes::nccl_api {
  using nccl_api::nccl_api;
  status_type all_gather(const void*, void*, std::size_t, belay::dtype, communicator_type, stream_type) { return {}; }
};

template <class Nccl, belay::nccl::sums Sums = belay::nccl::sums::any>
std::uint64_t lines_of(std::vector<std::string>& lines, const bench::table_options& how) {
  fakes::device_api api({.order = fakes::work_order::late, .devices = 3});
  fakes::nccl_fabric fabric(api);
  belay::nccl::world<fakes::device_api, Nccl, belay::host::world, Sums> world(api, Nccl(fabric), belay::host::world(3));
  std::uint64_t wrong = 0;
  world.run([&](auto& rank) {
    const std::uint64_t mine = bench::measure_table(rank, how, [&](const std::string& line) { lines.push_back(line); });
    if (rank.number() == 0) wrong = mine;
  });
  CHECK(fabric.refusals().empty());
  return wrong;
}

}  // namespace

TEST_CASE("the table of a device's collectives has nccl-tests' columns, and nothing is wrong") {
  const bench::table_options how{
      .operations = {all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, send_receive},
      .least = 64,
      .most = 4096,
      .factor = 8,
      .calls = 2,
      .warm_up = 1};
  std::vector<std::string> lines, ordered;
  CHECK(lines_of<fakes::nccl_api>(lines, how) == 0);
  CHECK(lines_of<fakes::nccl_api, belay::nccl::sums::fixed_order>(ordered, how) == 0);
  CHECK(lines.size() == 3 + 7 * 4);
  for (const char* column : {"size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"})
    CHECK(lines[1].find(column) != std::string::npos);
  const auto rows = std::count_if(lines.begin(), lines.end(), [](const std::string& line) { return line[0] != '#'; });
  CHECK(rows == 7 * 3);
  CHECK(ordered.size() == lines.size());
}

TEST_CASE("elements that an operation does not bring are counted as wrong") {
  std::vector<std::string> lines;
  CHECK(lines_of<broken_nccl>(lines,
                              {.operations = {all_gather}, .least = 600, .most = 600, .calls = 1, .warm_up = 1}) > 100);
}
