// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend over a fake one: order with the device's streams, meshes, versions, and what NCCL leaves undefined,
// each with a wrong policy or program that does it.
#include "belay/backend/nccl.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"
#include "unit/backend/nccl_world.hpp"

namespace {

using namespace nccl_test;
using belay::nccl::sums;
using fakes::work_order;
using group_type = rank_type<>::group_type;
using ordered_group = rank_type<fakes::nccl_api, sums::fixed_order>::group_type;

// What it promises, and what not.
static_assert(belay::communicator<group_type> && belay::has_groups<rank_type<>>);
static_assert(belay::sums_in_rank_order<ordered_group> && !belay::sums_in_rank_order<group_type>);
static_assert(belay::has_varying_counts<ordered_group> && belay::works_on_device<group_type> &&
              !belay::directly_addressable<group_type>);
static_assert(belay::can_all_reduce<ordered_group, std::int16_t> &&
              !belay::can_all_reduce<ordered_group, belay::fp8_e4m3>);

struct plus_one {
  float* x;
  void operator()(std::size_t i) const { x[i] += 1; }
};

bool refused(const outcome& got, const std::string& why) {
  const auto has = [&](const std::string& text) { return text.find(why) != std::string::npos; };
  const bool named = std::any_of(got.refusals.begin(), got.refusals.end(), has);
  const bool told = std::any_of(got.ranks.begin(), got.ranks.end(), [&](const end_of_rank& each) {
    return each.kind == belay::error_kind::backend && has(each.what);
  });
  return named && told && got.all_freed;
}
const auto sum_once = [](auto& rank, const device_type& device, auto&) {
  bridge memory(device, 4096);
  rank.world().all_reduce(memory.floats(0, 10), belay::sum);
};

}  // namespace

TEST_CASE("what is started comes after a kernel, and kernels come after it, in every order of the streams") {
  for (const world_options& options : {world_options{work_order::eager}, world_options{work_order::late},
                                       world_options{work_order::random, 2}, world_options{work_order::random, 5}}) {
    const outcome got = run(3, options, plain, [](auto& rank, const device_type& device, auto&) {
      bridge memory(device, 4096);
      const std::size_t n = 100;
      const float mine = static_cast<float>(rank.number());
      memory.put(std::vector<float>(n, mine));
      belay::cuda::stream<fakes::device_api> compute(device);
      for (int round = 0; round < 3; ++round) {
        compute.each(n, plus_one{memory.floats(0, n).data()});
        belay::pending sum =
            rank.world().start_all_reduce(memory.floats(0, n), belay::sum, belay::after(compute.record()));
        std::move(sum).then(compute);
      }
      memory.stream().wait(compute.record());
      // 1 + 2 + 3, then (6 + 1) * 3, then (21 + 1) * 3
      CHECK(memory.get(n) == std::vector<float>(n, 66));
    });
    CHECK(got.succeeded());
  }
}

TEST_CASE("a missing event is seen: the sum does not find the kernel's values, or the kernel the sum's") {
  for (const bool after : {false, true}) {
    const outcome got = run(2, {}, plain, [after](auto& rank, const device_type& device, auto&) {
      bridge memory(device, 4096);
      memory.put(std::vector<float>(8, 1));
      belay::cuda::stream<fakes::device_api> compute(device);
      compute.each(8, plus_one{memory.floats(0, 8).data()});
      const belay::start_order how =
          after ? belay::start_order(belay::after(compute.record())) : belay::where::current();
      rank.world().start_all_reduce(memory.floats(0, 8), belay::sum, how).wait();
      compute.synchronize();
      CHECK((memory.get(8) == std::vector<float>(8, 4)) == after);
    });
    CHECK(got.succeeded());
  }
}

TEST_CASE("sums of the fake are not in rank order, so that those who need it must ask for it") {
  const auto add = [](auto& rank, const device_type& device, bool in_order) {
    const std::size_t n = 600;
    bridge memory(device, 4096);
    memory.put(conformance::values<float>(rank.number(), n));
    rank.world().all_reduce(memory.floats(0, n), belay::sum);
    CHECK((memory.get(n) == conformance::reduced<float>(rank.size(), n, belay::sum)) == in_order);
  };
  CHECK(run(3, {}, plain, [&](auto& rank, const auto& device, auto&) { add(rank, device, false); }).succeeded());
  CHECK(run<sums::fixed_order>(3, {}, plain, [&](auto& rank, const auto& device, auto&) {
          add(rank, device, true);
        }).succeeded());
}

TEST_CASE("a mesh has data groups of the device and a control group of the host; a rank alone makes nothing of NCCL") {
  CHECK(run(4, {}, plain, [](auto& rank, const device_type& device, auto& policy) {
          belay::mesh mesh(rank, {.data = 2, .expert = 2});
          bridge memory(device, 4096);
          memory.put(std::vector<float>(4, static_cast<float>(rank.number())));
          mesh.data().all_reduce(memory.floats(0, 4), belay::sum);
          CHECK(memory.get(4)[0] == static_cast<float>(2 * (rank.number() % 2) + 2));
          mesh.expert().all_reduce(memory.floats(0, 4), belay::sum);
          CHECK(memory.get(4)[0] == 6);
          std::vector<int> host(1, rank.number());
          mesh.control().all_reduce(std::span(host), belay::sum);
          CHECK(host[0] == 6);
          const auto made = policy.names().size();
          CHECK(mesh.pipeline().size() == 1);  // a split that makes nothing for anybody
          CHECK(policy.names().size() == made);
        }).succeeded());
  CHECK(run(1, {}, plain, [](auto& rank, const device_type& device, auto& policy) {
          bridge memory(device, 4096);
          memory.put(std::vector<float>{1, 2, 3, 4});
          rank.world().all_gather(memory.floats(0, 2), memory.floats(8, 2));
          const belay::p2p both[] = {belay::p2p::send(0, memory.floats(2, 2)),
                                     belay::p2p::receive(0, memory.floats(10, 2))};
          rank.world().exchange(both);
          CHECK(memory.get(12)[11] == 4);
          CHECK(memory.get(12)[8] == 1);
          rank.world().barrier();
          CHECK(policy.names().empty());
        }).succeeded());
}

TEST_CASE("an NCCL that is too old is refused on all ranks; one that differs from the headers' has no reach") {
  const outcome old = run(2, {.nccl = {.version = 22808}}, plain, sum_once);
  for (const end_of_rank& each : old.ranks) {
    CHECK(each.kind == belay::error_kind::backend);
    CHECK(each.what.find("the NCCL that is loaded is 2.28.8; Belay needs 2.28.9 or later") != std::string::npos);
  }
  CHECK(old.all_freed);
  CHECK(run(2, {.nccl = {.version = 22907}}, plain, [](auto& rank, const device_type&, auto&) {
          CHECK_FALSE(rank.versions_agree());
        }).succeeded());
}

TEST_CASE("members that disagree about a group are refused on all ranks") {
  const outcome got = run(3, {}, plain, [](auto& rank, const device_type&, auto&) {
    const int two[] = {0, 1}, three[] = {0, 1, 2};
    static_cast<void>(rank.number() == 0 ? rank.group(two) : rank.group(three));
  });
  for (const end_of_rank& each : got.ranks) CHECK(each.kind == belay::error_kind::usage);
  CHECK(got.ranks[2].what.find("rank 0 makes a group of 2 ranks, of which 1 make the same now") != std::string::npos);
  CHECK(got.all_freed);
}

// What NCCL forbids or leaves undefined.

namespace {

struct miscounting : fakes::nccl_api {
  explicit miscounting(fakes::nccl_fabric& fabric, int number) : nccl_api(fabric), number_(number) {}
  status_type all_reduce(const void* from, void* to, std::size_t count, belay::dtype type, belay::reduction how,
                         communicator_type on, stream_type stream) {
    const auto wrong = number_ == 1 && count > 1 ? count - 1 : count;
    return nccl_api::all_reduce(from, to, wrong, type, how, on, stream);
  }
  int number_;
};
struct from_the_host : fakes::nccl_api {
  using nccl_api::nccl_api;
  status_type all_reduce(const void*, void* to, std::size_t count, belay::dtype type, belay::reduction how,
                         communicator_type on, stream_type stream) {
    return nccl_api::all_reduce(host_.data(), to, count, type, how, on, stream);
  }
  std::vector<float> host_ = std::vector<float>(16);
};
struct ungrouped : fakes::nccl_api {
  using nccl_api::nccl_api;
  status_type group_start() { return {}; }
  status_type group_end() { return {}; }
};
struct mixing : fakes::nccl_api {
  using nccl_api::nccl_api;
  status_type init(communicator_type& made, int ranks, const belay::nccl::unique_id& id, int rank, calls how) {
    const status_type got = nccl_api::init(made, ranks, id, rank, how);
    parent_ = made;
    return got;
  }
  status_type send(const void* from, std::size_t count, belay::dtype type, int peer, communicator_type on,
                   stream_type stream) {
    static_cast<void>(nccl_api::send(from, count, type, peer, parent_, stream));
    return nccl_api::send(from, count, type, peer, on, stream);
  }
  communicator_type parent_ = nullptr;
};

template <class Policy>
outcome run_with(const auto& body) {
  return run(
      2, {}, [](fakes::nccl_fabric& fabric, int) { return Policy(fabric); }, body);
}
const auto swap_values = [](auto& rank, const device_type& device, auto&) {
  bridge memory(device, 4096);
  const int peer = 1 - rank.number();
  const belay::p2p both[] = {belay::p2p::send(peer, memory.floats(0, 8)),
                             belay::p2p::receive(peer, memory.floats(8, 8))};
  rank.world().exchange(both);
};

}  // namespace

TEST_CASE("the fake refuses unequal counts, memory of the host, opposing sends in no group, and mixed groups") {
  CHECK(
      refused(run(
                  2, {}, [](fakes::nccl_fabric& fabric, int number) { return miscounting(fabric, number); }, sum_once),
              "unequal counts"));
  CHECK(refused(run_with<from_the_host>(sum_once), "memory of the host"));
  CHECK(run_with<fakes::nccl_api>(swap_values).succeeded());
  CHECK(refused(run_with<ungrouped>(swap_values), "opposing sends that are in no group"));
  CHECK(refused(run_with<mixing>(swap_values), "blocking and non-blocking communicators in one group"));
}

TEST_CASE("the fake refuses ranks that disagree on the order of two communicators") {
  for (const bool wrong : {false, true}) {
    const outcome got = run_with<fakes::nccl_api>([wrong](auto& rank, const device_type& device, auto&) {
      bridge memory(device, 4096);
      const int all[] = {0, 1};
      const auto other = rank.group(all);
      const auto first = memory.floats(0, 8), second = memory.floats(8, 8);
      std::vector<belay::pending> started;
      if (wrong && rank.number() == 1) {
        started.push_back(other.start_all_reduce(second, belay::sum));
        started.push_back(rank.world().start_all_reduce(first, belay::sum));
      } else {
        started.push_back(rank.world().start_all_reduce(first, belay::sum));
        started.push_back(other.start_all_reduce(second, belay::sum));
      }
      belay::wait_all(started);
    });
    CHECK((wrong ? refused(got, "ranks disagree on the order of two communicators") : got.succeeded()));
  }
}

TEST_CASE("the fake refuses a communicator that is not ready, or has ended") {
  struct hasty : fakes::nccl_api {
    using nccl_api::nccl_api;
    status_type async_error(communicator_type, status_type& told) {  // an event before success
      told = {};
      return {};
    }
  };
  const outcome got = run_with<hasty>(sum_once);
  CHECK(refused(got, "a communicator that is not ready"));
}

// Symmetric memory.

namespace {

struct put_to_next {
  std::byte* const* windows;
  std::size_t offset, rank, ranks;
  void operator()(std::size_t i) const {
    reinterpret_cast<float*>(windows[(rank + 1) % ranks] + offset)[i] = static_cast<float>(rank);
  }
};
// Rank q stores its number into the window of rank q + 1.
const auto put = [](auto& rank, const device_type& device, auto&) {
  auto window = rank.make_window(rank.world(), 5000);
  CHECK(window.size_bytes() == 8192);  // whole pages
  CHECK(window.take(100) == 0);
  const std::size_t offset = window.take(32);
  CHECK(offset == 256);
  CHECK_THROWS_AS(static_cast<void>(window.take(8192)), belay::budget_error);
  CHECK(window.reach() == rank.size());
  CHECK(window.in_team(rank.size() - 1, rank.number()) == rank.size() - 1);
  belay::cuda::stream<fakes::device_api> compute(device);
  const auto size = static_cast<std::size_t>(rank.size());
  compute.each(8, put_to_next{window.pointers(), offset, static_cast<std::size_t>(rank.number()), size});
  compute.synchronize();
  rank.world().barrier();
  bridge memory(device, 64);
  memory.stream().copy(memory.floats(0, 8).data(), window.data() + offset, 32);
  memory.stream().synchronize();
  CHECK(memory.get(8) == std::vector<float>(8, static_cast<float>((rank.number() + rank.size() - 1) % rank.size())));
};

}  // namespace

TEST_CASE("ranks of a load/store team store into each other's windows") {
  CHECK(run(3, {.nccl = {.team = 3}}, plain, put).succeeded());
}

TEST_CASE("a window has no reach where there is no team, where one rank has none, or with another NCCL") {
  const auto no_reach = [](auto& rank, const device_type&, auto&) {
    const auto window = rank.make_window(rank.world(), 1);
    CHECK(window.reach() == 0);
    CHECK(window.pointers() == nullptr);
    CHECK_FALSE(window.in_team(0, rank.number()).has_value());
  };
  CHECK(run(2, {}, plain, no_reach).succeeded());
  CHECK(run(2, {.nccl = {.version = 22907, .team = 2}}, plain, no_reach).succeeded());
  struct without_device_calls : fakes::nccl_api {
    without_device_calls(fakes::nccl_fabric& fabric, int number) : nccl_api(fabric), number_(number) {}
    status_type find_team(communicator_type on, belay::nccl::load_store_team& team) {
      const status_type got = nccl_api::find_team(on, team);
      if (number_ == 1) team = {};
      return got;
    }
    int number_;
  };
  CHECK(run(
            2, {.nccl = {.team = 2}}, [](auto& fabric, int number) { return without_device_calls(fabric, number); },
            no_reach)
            .succeeded());
}

TEST_CASE("windows of different sizes are refused on all ranks; one that is left at the end too") {
  const outcome sizes = run(2, {}, plain, [](auto& rank, const device_type&, auto&) {
    static_cast<void>(rank.make_window(rank.world(), rank.number() == 0 ? 100 : 5000));
  });
  for (const end_of_rank& each : sizes.ranks) CHECK(each.what.find("give the same bytes") != std::string::npos);
  CHECK(sizes.all_freed);
  const outcome left = run(2, {}, plain, [](auto& rank, const device_type&, auto&) {
    const auto window = rank.make_window(rank.world(), 100);
    CHECK_THROWS_WITH_AS(rank.finish(), doctest::Contains("1 windows of the rank are left"), belay::usage_error);
  });
  CHECK(left.succeeded());
}

TEST_CASE("the fake refuses windows before a first collective, and ends of communicators before windows'") {
  struct unwarmed : fakes::nccl_api {
    using nccl_api::nccl_api;
    status_type all_reduce(const void*, void*, std::size_t, belay::dtype, belay::reduction, communicator_type,
                           stream_type) {
      return {};
    }
  };
  const auto make = [](auto& rank, const device_type&, auto&) {
    const auto window = rank.make_window(rank.world(), 100);
  };
  CHECK(run_with<fakes::nccl_api>(make).succeeded());
  CHECK(refused(run_with<unwarmed>(make), "a window before a first collective"));
  struct leaking : fakes::nccl_api {
    using nccl_api::nccl_api;
    status_type deregister_window(communicator_type, window_type) { return {}; }
    status_type release(std::byte*) { return {}; }
  };
  const outcome leaks = run_with<leaking>(make);
  CHECK(std::count(leaks.refusals.begin(), leaks.refusals.end(), "a communicator ends before its windows") > 0);
}
