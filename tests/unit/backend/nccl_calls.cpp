// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a group over NCCL makes of others' calls: parts of varying sizes, sums that NCCL does not add, composites, and
// what a rank does between operations.
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/nccl.hpp"
#include "belay/comm.hpp"
#include "unit/backend/nccl_trials.hpp"
#include "unit/backend/nccl_world.hpp"

namespace {

using namespace nccl_test;
using belay::nccl::sums;

// Whole numbers, so that every order of a sum is right.
float value(int rank, std::size_t i) { return static_cast<float>(static_cast<std::size_t>(rank) * 100 + i); }
std::vector<float> values(int rank, std::size_t count) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = value(rank, i);
  return out;
}
struct doubled {
  float* x;
  void operator()(std::size_t i) const { x[i] *= 2; }
};

// Of three ranks; the slots of the workspace have room for 84 floats.
const auto varying = [](auto& rank, const device_type& device, auto&) {
  const auto& world = rank.world();
  const int me = rank.number();
  for (const std::vector<std::size_t>& counts : {std::vector<std::size_t>{5, 0, 200}, {60, 60, 60}, {0, 0, 0}}) {
    std::size_t all = 0, before = 0;
    for (int q = 0; q < 3; ++q) {
      if (q < me) before += counts[static_cast<std::size_t>(q)];
      all += counts[static_cast<std::size_t>(q)];
    }
    const std::size_t own = counts[static_cast<std::size_t>(me)];
    bridge memory(device, 8192);
    memory.put(values(me, all));
    world.all_gather_v(memory.floats(0, all), counts);
    std::size_t first = 0;
    const std::vector<float> gathered = memory.get(all);
    for (int q = 0; q < 3; ++q)
      for (std::size_t i = 0; i < counts[static_cast<std::size_t>(q)]; ++i, ++first)
        CHECK(gathered[first] == value(q, first));

    memory.put(values(me, all));
    world.reduce_scatter_v(memory.floats(0, all), counts, belay::sum);
    const std::vector<float> reduced = memory.get(all);
    for (std::size_t i = 0; i < all; ++i) {
      const bool mine = i >= before && i < before + own;
      CHECK(reduced[i] == (mine ? value(0, i) + value(1, i) + value(2, i) : value(me, i)));
    }
  }
  // Rank r sends rank q `moved[r][q]`: apart, and in place where that is as much as it receives.
  const std::size_t moved[3][3] = {{2, 150, 0}, {150, 3, 90}, {0, 90, 1}};
  const std::span<const std::size_t> sent(moved[me]);
  const std::size_t all = sent[0] + sent[1] + sent[2];
  for (const bool in_place : {false, true}) {
    bridge memory(device, 8192);
    memory.put(values(me, all));
    const std::span<float> in = memory.floats(0, all), out = in_place ? in : memory.floats(400, all);
    world.all_to_all_v(std::span<const float>(in), sent, out, sent);
    const std::vector<float> got = memory.get(400 + all);
    std::size_t first = in_place ? 0 : 400;
    for (int q = 0; q < 3; ++q) {
      std::size_t there = 0;
      for (int r = 0; r < me; ++r) there += moved[q][r];
      for (std::size_t i = 0; i < sent[static_cast<std::size_t>(q)]; ++i, ++first)
        CHECK(got[first] == value(q, there + i));
    }
  }
};

}  // namespace

TEST_CASE("parts of varying sizes are gathered, reduced and exchanged, as NCCL adds and in rank order") {
  CHECK(run(3, {}, plain, varying).succeeded());
  CHECK(run<sums::fixed_order>(3, {.order = fakes::work_order::random, .seed = 3}, plain, varying).succeeded());
}

TEST_CASE("a rank without a workspace has barriers, and what NCCL adds") {
  CHECK(run(2, {.workspace = 0}, plain, [](auto& rank, const device_type& device, auto&) {
          rank.world().barrier();
          bridge memory(device, 64);
          memory.put(values(rank.number(), 4));
          rank.world().all_reduce(memory.floats(0, 4), belay::sum);
          rank.world().barrier();
          CHECK(memory.get(4)[1] == value(0, 1) + value(1, 1));
        }).succeeded());
}

TEST_CASE("while a communicator that does not block is split, nobody else asks it") {
  // In the middle of what a split waits for, another thread looks, as the watchdog may at any time.
  struct looked_at : fakes::nccl_api {
    using nccl_api::nccl_api;
    status_type async_error(communicator_type on, status_type& told) {
      if (const auto look = std::exchange(looks, {})) std::thread(look).join();
      return nccl_api::async_error(on, told);
    }
    std::function<void()> looks;
  };
  struct single_rank_watch final : belay::stream_watch {
    [[nodiscard]] std::chrono::steady_clock::duration limit() const noexcept override {
      return std::chrono::seconds(60);
    }
    [[nodiscard]] bool failed() const noexcept override { return false; }
    [[noreturn]] void raise(belay::where) const override { throw std::logic_error("no failure"); }
    [[noreturn]] void give_up(const std::string& what, belay::where) const override { throw std::runtime_error(what); }
    void fail(belay::error_kind, const std::string&, belay::where) const override {}
    [[nodiscard]] int rank() const noexcept override { return 0; }
  };
  fakes::device_api gpu;
  fakes::nccl_fabric fabric(gpu);
  looked_at policy(fabric);
  const belay::nccl::library<looked_at> lib(policy);
  belay::nccl::rank_failure failure(std::make_shared<single_rank_watch>());
  belay::nccl::communicators<looked_at> all(lib, failure);
  belay::nccl::unique_id id{};
  REQUIRE(policy.make_id(id).failure.empty());
  all.init(1, id, belay::where::current());
  bool met = false;
  policy.looks = [&] { met = all.met().has_value(); };
  CHECK(all.split(0, 0, belay::where::current()) != nullptr);
  CHECK_FALSE(policy.looks);
  CHECK_FALSE(met);
  CHECK(fabric.refusals() == std::vector<std::string>());
  CHECK_FALSE(all.met().has_value());
  all.destroy(belay::where::current());
  CHECK(fabric.empty());
}

TEST_CASE("integers of 16 bits, which NCCL does not add, are added by Belay") {
  CHECK(run(2, {}, plain, [](auto& rank, const device_type& device, auto& policy) {
          bridge memory(device, 4096);
          const std::span<std::int16_t> x(reinterpret_cast<std::int16_t*>(memory.floats(0, 4).data()), 8);
          const std::vector<std::int16_t> mine(8, static_cast<std::int16_t>(rank.number() + 1));
          rank.world().place(x.data(), mine.data(), x.size_bytes());
          rank.world().all_reduce(x, belay::sum);
          std::vector<std::int16_t> got(8);
          rank.world().fetch(got.data(), x.data(), x.size_bytes());
          CHECK(got == std::vector<std::int16_t>(8, 3));
          CHECK(policy.names().back() == "group_end");
        }).succeeded());
}

TEST_CASE(
    "a composite is in the order of the rank's communications, after its event, with kernels and the host's calls") {
  for (const world_options& options : {world_options{fakes::work_order::eager}, world_options{fakes::work_order::late},
                                       world_options{fakes::work_order::random, 4}}) {
    CHECK(run(2, options, plain, [](auto& rank, const device_type& device, auto&) {
            bridge memory(device, 4096);
            const std::span<float> x = memory.floats(0, 50);
            const auto& world = rank.world();
            world.place(x.data(), values(rank.number(), 50).data(), x.size_bytes());
            belay::cuda::stream<fakes::device_api> compute(device);
            compute.each(50, doubled{x.data()});
            int told = 0;
            belay::pending whole = world.start_composite(
                belay::operation::all_reduce,
                [&](const auto& calls) {
                  calls.each(50, doubled{x.data()});
                  calls.all_reduce(x, belay::sum);
                  calls.each(50, doubled{x.data()});
                  const int mine = calls.rank() + 1;
                  std::vector<int> all(2);
                  calls.control().all_gather(std::span<const int>(&mine, 1), std::span<int>(all));
                  told = all[0] * 10 + all[1];
                },
                belay::after(compute.record()));
            CHECK(told == 12);
            std::move(whole).then(compute);
            compute.each(50, doubled{x.data()});
            compute.synchronize();
            std::vector<float> got(50);
            world.fetch(got.data(), x.data(), x.size_bytes());
            for (std::size_t i = 0; i < 50; ++i) CHECK(got[i] == 16 * (value(0, i) + value(1, i)));
          }).succeeded());
  }
}

TEST_CASE("what a rank would send itself is what it expects of itself, and counts divide their buffer") {
  CHECK(run(2, {}, plain, [](auto& rank, const device_type& device, auto&) {
          bridge memory(device, 4096);
          const std::vector<std::size_t> sent{2, 2}, received{1, 3}, other{3, 1};
          CHECK_THROWS_WITH_AS(rank.world().all_to_all_v(std::span<const float>(memory.floats(0, 4)), sent,
                                                         memory.floats(8, 4), rank.number() == 0 ? received : other),
                               doctest::Contains("of the group sends itself 2 elements and expects"),
                               belay::usage_error);
          CHECK_THROWS_AS(rank.world().all_gather_v(memory.floats(0, 5), sent), belay::usage_error);
        }).succeeded());
}

TEST_CASE("operations are spans with the device's times while a log is traced into, and not before or after") {
  for (const fakes::work_order order : {fakes::work_order::eager, fakes::work_order::late})
    CHECK(run(2, {order}, plain, [](auto& rank, const device_type& device, auto&) {
            bridge memory(device, 4096);
            const std::span<float> x = memory.floats(0, 50), y = memory.floats(64, 50);
            const auto& world = rank.world();
            const int other = 1 - rank.number();
            belay::cuda::stream<fakes::device_api> compute(device);
            std::vector<belay::traced_span> room(20);
            belay::span_log log(room);
            const auto step = [&] {
              compute.each(50, doubled{x.data()});
              const belay::p2p ring[] = {belay::p2p::send(other, std::span<const float>(x)),
                                         belay::p2p::receive(other, y)};
              world.start_exchange(ring, belay::after(compute.record())).then(compute);
              world.all_reduce(y, belay::sum);
            };
            step();
            world.trace_into(&log);
            step();
            world.trace_into(nullptr);
            step();
            std::vector<std::string> names;
            std::size_t transfers = 0;
            for (const belay::traced_span& each : log.spans()) {
              if (each.kind == belay::span_kind::send || each.kind == belay::span_kind::receive) {
                CHECK(each.peer == static_cast<std::uint32_t>(other));
                ++transfers;
              } else if (each.kind == belay::span_kind::communication) {
                names.emplace_back(each.name);
                CHECK(each.lane == belay::span_lane::communication);
                CHECK(each.over());
                CHECK(each.end > each.begin);
              }
            }
            CHECK(names == std::vector<std::string>{"exchange", "all_reduce"});
            CHECK(transfers == 2);
          }).succeeded());
}

// What cuda/nccl_peers asks of a machine with two GPUs, of the fakes: and that it finds what is wrong.

namespace {

// Rank 1's sums are of something else, and all windows are rank 0's.
struct others_bits : fakes::nccl_api {
  explicit others_bits(fakes::nccl_fabric& fabric) : nccl_api(fabric), made_(std::make_shared<int>(0)) {}
  others_bits(const others_bits& other) : nccl_api(other), made_(other.made_), rank_((*made_)++) {}
  status_type all_reduce(const void* from, void* to, std::size_t count, belay::dtype type, belay::reduction how,
                         communicator_type on, stream_type stream) {
    auto* const last = static_cast<float*>(to) + (count - 1);
    const status_type got = nccl_api::all_reduce(from, to, count, type, how, on, stream);
    if (rank_ == 1) static_cast<void>(fabric().device().each(stream, 1, doubled{last}));
    return got;
  }
  std::shared_ptr<int> made_;
  int rank_ = -1;
};
struct first_windows : fakes::nccl_api {
  using nccl_api::nccl_api;
  status_type write_pointers(stream_type stream, window_type window, const belay::nccl::load_store_team& team,
                             std::byte** table) {
    const status_type got = nccl_api::write_pointers(stream, window, team, table);
    static_cast<void>(fabric().device().each(stream, 1, one_for_all{table}));
    return got;
  }
  struct one_for_all {
    std::byte** table;
    void operator()(std::size_t) const { table[1] = table[0]; }
  };
};

template <class Nccl, class Trial>
std::string asked(const fakes::nccl_options& options, fakes::work_order order, const Trial& trial) {
  fakes::device_api api({.order = order, .seed = 1, .devices = 2});
  fakes::nccl_fabric fabric(api, options);
  std::string wrong = trial(api, Nccl(fabric));
  CHECK(fabric.refusals().empty());
  return wrong;
}
const belay::nccl::world_options little{
    .ranks = {.workspace_bytes = 1024, .watch_period = std::chrono::milliseconds(5)}};

}  // namespace

TEST_CASE("what two GPUs are asked of sums and windows is so on the fakes, and is missed where it is not") {
  const auto bits = [](auto& api, const auto& nccl) {
    return nccl_trials::same_bits(
        belay::nccl::world(api, nccl, belay::host::world(2), belay::nccl::adds<sums::any>{}, little), 3000);
  };
  const auto windows = [](auto& api, const auto& nccl) {
    return nccl_trials::windows(belay::nccl::world(api, nccl, belay::host::world(2), little), 50, 4);
  };
  for (const fakes::work_order order : {fakes::work_order::eager, fakes::work_order::late, fakes::work_order::random}) {
    CHECK(asked<fakes::nccl_api>({}, order, bits) == "");
    CHECK(asked<fakes::nccl_api>({.team = 2}, order, windows) == "");
  }
  CHECK(asked<fakes::nccl_api>({}, fakes::work_order::late, windows) == nccl_trials::no_reach);
  CHECK(asked<others_bits>({}, fakes::work_order::late, bits).find("other bits") != std::string::npos);
  CHECK(asked<first_windows>({.team = 2}, fakes::work_order::late, windows).find("loads") != std::string::npos);
}

TEST_CASE("a rank comes back from a call, a collective and a launch for which its peer does not come") {
  using nccl_trials::waits_in;
  for (const waits_in what : {waits_in::call, waits_in::collective, waits_in::graph})
    CHECK(asked<fakes::nccl_api>({}, fakes::work_order::late, [what](auto& api, const auto& nccl) {
            return nccl_trials::comes_back(api, nccl, what, belay::host::world(2), little);
          }) == "");
}
