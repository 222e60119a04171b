// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Failures of NCCL and of the device under it, at every call in turn: a typed error that names call, rank and bytes,
// the first cause on all ranks, everything freed, no hang.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/nccl.hpp"
#include "belay/comm.hpp"
#include "unit/backend/hand_clock.hpp"
#include "unit/backend/nccl_world.hpp"

namespace {

using namespace nccl_test;
using belay::nccl::sums;
using fakes::nccl_injection;

// Communicators, a window, collectives, transfers in groups, started and blocking.
const auto program = [](auto& rank, const device_type& device, auto&, kept_memory& kept) {
  bridge& memory = kept_bridge(kept, device, 4096);
  const int all[] = {0, 1};
  const auto other = rank.group(all);
  const auto window = rank.make_window(other, 100);
  belay::pending sum = rank.world().start_all_reduce(memory.floats(0, 300), belay::sum);
  belay::pending gathered = other.start_all_gather(memory.floats(300, 10), memory.floats(400, 20));
  std::move(sum).then(memory.stream());
  std::move(gathered).wait();
  const int peer = 1 - rank.number();
  const belay::p2p both[] = {belay::p2p::send(peer, memory.floats(0, 8)),
                             belay::p2p::receive(peer, memory.floats(8, 8))};
  other.exchange(both);
  rank.world().all_to_all(memory.floats(0, 600), memory.floats(0, 600));
  rank.world().barrier();
};

outcome with(const nccl_injection& injection, std::chrono::duration<double> timeout = std::chrono::seconds(60)) {
  return run<sums::fixed_order>(
      2, {.nccl = {.team = 2}, .timeout = timeout},
      [&](fakes::nccl_fabric& fabric, int number) {
        return fakes::nccl_api(fabric, number == 1 ? injection : nccl_injection{});
      },
      program);
}
// The names of all calls of a rank.
std::vector<std::string> calls_of_program() {
  std::vector<std::string> names;
  const outcome got = run<sums::fixed_order>(
      2, {.nccl = {.team = 2}}, plain, [&](auto& rank, const device_type& device, auto& policy, kept_memory& kept) {
        program(rank, device, policy, kept);
        rank.finish();
        if (rank.number() == 1) names = policy.names();
      });
  CHECK(got.succeeded());
  return names;
}
// What is no operation of a communicator has neither an asynchronous error nor peers that wait for it; a transfer is
// its group's.
bool is_operation(const std::string& name) {
  static const std::set<std::string> others{"version",   "make_id",        "group_start",     "destroy",
                                            "send",      "receive",        "mem_allocate",    "mem_release",
                                            "find_team", "write_pointers", "register_window", "deregister_window"};
  return others.count(name) == 0;
}
// A destructor's: it is noted, and what it ends has ended.
bool is_noted(const std::string& name) { return name == "deregister_window" || name == "mem_release"; }
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a call of NCCL that fails is a backend_error of its rank, and the first cause on all") {
  const std::vector<std::string> names = calls_of_program();
  REQUIRE(names.size() > 30);
  for (std::size_t k = 1; k <= names.size(); ++k) {
    CAPTURE(names[k - 1]);
    CAPTURE(k);
    const outcome got = with({k, nccl_injection::failing_way::fails});
    const end_of_rank &mine = got.ranks[1], &theirs = got.ranks[0];
    CHECK(got.refusals.empty());
    CHECK(got.all_freed);
    if (is_noted(names[k - 1])) continue;
    CHECK(mine.kind == belay::error_kind::backend);
    CHECK(mine.rank == 1);
    CHECK(has(mine.what, "injected"));
    CHECK((mine.bytes > 0 || mine.call == "find_team" || mine.call == "init" || mine.call == "split" ||
           mine.call == "version" || has(mine.call, "group_") || mine.call == "barrier" || mine.call == "destroy"));
    // What ends rank 1 after rank 0 has ended is its own.
    const bool told = theirs.kind == belay::error_kind::communication && has(theirs.what, "rank 1");
    CHECK((told || (theirs.kind == belay::error_kind::none && mine.call == "destroy")));
  }
}

TEST_CASE("an asynchronous error is found by the watchdog, and names the operation, its bytes and its site") {
  const std::vector<std::string> names = calls_of_program();
  for (std::size_t k = 1; k <= names.size(); ++k) {
    if (!is_operation(names[k - 1])) continue;
    CAPTURE(names[k - 1]);
    CAPTURE(k);
    const outcome got = with({k, nccl_injection::failing_way::asynchronous});
    const end_of_rank& mine = got.ranks[1];
    CAPTURE(mine.what);
    CAPTURE(got.ranks[0].what);
    for (const std::string& each : got.refusals) FAIL_CHECK(each);
    CHECK(mine.kind == belay::error_kind::backend);
    CHECK(mine.rank == 1);
    CHECK(has(mine.what, "injected"));
    CHECK(got.ranks[0].kind == belay::error_kind::communication);
    CHECK(has(got.ranks[0].what, "rank 1"));
    CHECK((has(mine.what, "nccl_faults.cpp:") || has(mine.what, "nccl_world.hpp:")));
    CHECK(got.all_freed);
  }
}

TEST_CASE("an operation to which a rank does not come ends at its time, on all ranks, and is named") {
  const std::vector<std::string> names = calls_of_program();
  std::set<std::string> tried;
  for (std::size_t k = 1; k <= names.size(); ++k) {
    if (!is_operation(names[k - 1])) continue;
    if (!tried.insert(names[k - 1]).second) continue;
    CAPTURE(names[k - 1]);
    const outcome got = with({k, nccl_injection::failing_way::silent}, std::chrono::milliseconds(100));
    for (const end_of_rank& each : got.ranks) {
      CHECK(each.kind == belay::error_kind::communication);
      CHECK(has(each.what, "timeout"));
      CHECK((has(each.what, "waits in") || has(each.what, "has not ended in time")));
    }
    CHECK(got.all_freed);
  }
  CHECK(tried.size() >= 4);
}

TEST_CASE("how long an operation waits for a rank is by the clock of the control world") {
  hand_clock clock;
  const auto begun = std::chrono::steady_clock::now();
  const outcome got = run(2, {.timeout = std::chrono::seconds(600), .clock = &clock}, plain,
                          [&](auto& rank, const device_type& device, auto&, kept_memory& kept) {
                            bridge& memory = kept_bridge(kept, device, 4096);
                            rank.world().barrier();
                            const auto watch = rank.watch();
                            if (rank.number() == 0) {
                              const moving_on fast(clock);
                              rank.world().all_reduce(memory.floats(0, 8), belay::sum);
                            }
                            while (!watch->failed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                            watch->raise(belay::where::current());
                          });
  for (const end_of_rank& each : got.ranks) CHECK(has(each.what, "rank 0 waits in all_reduce #1 of 32 bytes for 600"));
  CHECK(got.all_freed);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(60));
}

TEST_CASE("a call of the device that fails under NCCL is told, and everything is freed") {
  for (std::uint64_t k : {1U, 2U, 3U, 50U, 131U, 260U, 262U, 264U, 266U, 268U, 270U, 274U, 279U, 285U, 290U, 300U}) {
    CAPTURE(k);
    const outcome got = run<sums::fixed_order>(2, {.device_fails_at = k}, plain, program);
    const auto typed = [](const end_of_rank& each) {
      return each.kind == belay::error_kind::backend
                 ? each.rank >= 0 && !each.call.empty()
                 : each.kind == belay::error_kind::communication || each.kind == belay::error_kind::none;
    };
    CHECK(std::all_of(got.ranks.begin(), got.ranks.end(), typed));
    CHECK(got.all_freed);
  }
}

TEST_CASE("a rank whose body throws is the first cause of ranks that wait in NCCL for it") {
  const outcome got = run(3, {}, plain, [](auto& rank, const device_type& device, auto&, kept_memory& kept) {
    bridge& memory = kept_bridge(kept, device, 4096);
    if (rank.number() == 2) throw belay::usage_error("gives up", belay::where::current());
    rank.world().all_reduce(memory.floats(0, 8), belay::sum);
  });
  for (int r : {0, 1}) {
    const end_of_rank& each = got.ranks[static_cast<std::size_t>(r)];
    CHECK(each.kind == belay::error_kind::communication);
    CHECK(has(each.what, "rank 2"));
    CHECK(has(each.what, "gives up"));
  }
  CHECK(got.all_freed);
}

TEST_CASE("after a failure every call says the first cause, and what was over before stays so") {
  const outcome got = run(
      2, {.timeout = std::chrono::milliseconds(100)}, plain,
      [](auto& rank, const device_type& device, auto&, kept_memory& kept) {
        bridge& memory = kept_bridge(kept, device, 4096);
        belay::pending good = rank.world().start_all_reduce(memory.floats(0, 8), belay::sum);
        rank.world().barrier();
        if (rank.number() == 0)
          CHECK_THROWS_AS(rank.world().all_reduce(memory.floats(8, 8), belay::sum), belay::comm_error);
        else
          CHECK_THROWS_AS(rank.control().barrier(), belay::comm_error);  // by rank 0's first cause
        if (rank.number() == 0) {
          std::move(good).wait();
          CHECK_THROWS_WITH_AS(rank.world().barrier(), doctest::Contains("waits in all_reduce #2"), belay::comm_error);
        } else {
          std::move(good).in_start_order();
        }
        const int alone[] = {rank.number()};
        static_cast<void>(rank.group(alone));
      });
  for (const end_of_rank& each : got.ranks) CHECK(each.kind == belay::error_kind::communication);
  CHECK(got.all_freed);
}
