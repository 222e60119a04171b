// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The table of collectives over a device: over a fake NCCL every operation has its columns, and what arrives is right;
// an operation that gives something else is counted. The figures of a device: their lines, and what a step costs the
// host.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "cuda/bookkeeping.hpp"
#include "cuda/collective_table.hpp"
#include "cuda/figures.hpp"
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
      .operations = {all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, send_recv},
      .least = 64,
      .most = 4096,
      .factor = 8,
      .calls = 2,
      .warmup = 1};
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
  CHECK(lines_of<broken_nccl>(lines, {.operations = {all_gather}, .least = 600, .most = 600, .calls = 1, .warmup = 1}) >
        100);
}

TEST_CASE("what is hidden of an all_reduce beside products is told in a line") {
  CHECK(bench::hidden_share(2, 3, 3) == 1);
  CHECK(bench::hidden_share(2, 3, 4) == 0.5);
  CHECK(bench::hidden_share(2, 3, 6) == 0);
  fakes::device_api api({.order = fakes::work_order::late, .devices = 2});
  fakes::nccl_fabric fabric(api);
  belay::nccl::world world(api, fakes::nccl_api(fabric), belay::host::world(2));
  std::string line;
  world.run([&](auto& rank) {
    const bench::overlap got = bench::measure_overlap(rank, 4096, 8, 2);
    CHECK(got.communication > 0);
    CHECK(got.computation > 0);
    CHECK(got.together > 0);
    CHECK(got.products >= 1);
    if (rank.number() == 0) line = got.text();
  });
  CHECK(line.starts_with("# overlap: all_reduce of 4096 bytes "));
  CHECK(line.ends_with(" of the shorter is hidden"));
}

TEST_CASE("a figure is told with its limit and whether it has reached it, and all of them as JSON") {
  const bench::figure good{"copies", "", 0.93, 0.88, 0.92, bench::figure::side::at_least};
  CHECK(good.line().ends_with("  0.930 (limit: at least 0.88, goal 0.92)  reached"));
  const bench::figure late{"a \"step\"", "us", 12, 10, 0, bench::figure::side::at_most};
  CHECK(late.line().ends_with(" 12.000 us (limit: at most 10.00)  short"));
  bench::figures all;
  all.at_least("copies", 0.93, 0.88, 0.92);
  all.told("speed", 4000, "GB/s");
  CHECK(all.all_reached());
  all.at_most("a \"step\"", 12, 10, "us");
  CHECK_FALSE(all.all_reached());
  CHECK(all.json("card") ==
        "{\"device\": \"card\", \"figures\": [\n"
        "  {\"what\": \"copies\", \"unit\": \"\", \"measured\": 0.93, \"limit\": 0.88, \"side\": \"at least\", "
        "\"reached\": true},\n"
        "  {\"what\": \"speed\", \"unit\": \"GB/s\", \"measured\": 4000},\n"
        "  {\"what\": \"a \\\"step\\\"\", \"unit\": \"us\", \"measured\": 12, \"limit\": 10, \"side\": \"at most\", "
        "\"reached\": false}]}\n");
}

namespace {

using ticks = std::int64_t;
struct tick_clock {
  ticks* now;
  ticks operator()() const { return ++*now; }
};
constexpr ticks long_call = 1'000'000;
// A device whose copies, launches and waits take long.
struct slow_device : fakes::device_api {
  slow_device(ticks* now, const fakes::device_options& how) : device_api(how), now_(now) {}
  status_type copy(stream_type on, void* to, const void* from, std::size_t bytes) {
    *now_ += long_call;
    return device_api::copy(on, to, from, bytes);
  }
  status_type launch(graph_type which, stream_type on) {
    *now_ += long_call;
    return device_api::launch(which, on);
  }
  status_type await(event_type which, std::chrono::nanoseconds at_most, bool& reached) {
    *now_ += long_call;
    return device_api::await(which, at_most, reached);
  }
  ticks* now_;
};

}  // namespace

TEST_CASE("bookkeeping of a step that is launched leaves out copies, launches and waits") {
  ticks now = 0;
  bench::timed_calls<slow_device, tick_clock> api(tick_clock{&now}, &now,
                                                  fakes::device_options{.order = fakes::work_order::late});
  std::vector<std::int64_t> own, all;
  const auto train = [&](std::vector<std::int64_t>& told, const auto& clock) {
    belay::launch(belay::cuda::world(api, belay::host::world(1)), bench::replayed::body(6, told, clock));
    REQUIRE(told.size() == 6);
  };
  train(own, [&] { return api.own_time(); });
  train(all, [&] { return now; });
  for (std::size_t step = 2; step < 6; ++step) {
    CHECK(own[step] < 1000);
    CHECK(all[step] >= 4 * long_call);  // the batch, two launches, and the wait of the commit
  }
}
