// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer whose ranks have a device each and communicate over NCCL, over a fake of both: it has the bits that it has
// over a world of the host, in every order of the devices' streams; what it takes of devices is held against them.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/failing_nccl.hpp"
#include "unit/train/support/device_trainer.hpp"
#include "unit/train/support/directory.hpp"

using namespace device_trainer;
using fakes::failing_nccl, fakes::has_peers, fakes::one_failure;
using fakes::work_order;

namespace {

// Little, so that sums take several rounds.
constexpr belay::nccl::world_options options_of(std::size_t workspace = 192) {
  return {.ranks = {.workspace_bytes = workspace, .watch_period = std::chrono::milliseconds(5)},
          .parent_bytes = 1 << 16,
          .group_bytes = 1 << 12};
}
template <class T>
result on_host(int ranks, const settings& trains) {
  result out;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks), trained<T>(out, trains));
  return out;
}
template <class T>
result over_nccl(int ranks, const settings& trains, fakes::device_options how) {
  how.devices = ranks;
  fakes::device_api api(how);
  fakes::nccl_fabric fabric(api);
  result out;
  belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(ranks), options_of()),
                trained<T>(out, trains));
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  return out;
}
template <int Stage, class T = float>
void check_stage() {
  const settings trains{.stage = static_cast<belay::zero_stage>(Stage)};
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const result expected = on_host<T>(ranks, trains);
    REQUIRE(expected.losses.size() == steps);
    for (const fakes::device_options& how : {fakes::device_options{work_order::eager},
                                             {work_order::late},
                                             {work_order::random, 1},
                                             {work_order::random, 2}})
      CHECK(over_nccl<T>(ranks, trains, how) == expected);
  }
}

// What a launch of two ranks throws, empty: nothing.
struct thrown {
  std::string what;
  belay::error_kind kind = belay::error_kind::none;
};
thrown train_with(one_failure& how, std::chrono::duration<double> timeout = std::chrono::seconds(60)) {
  fakes::device_api api({.order = work_order::late, .devices = 2});
  fakes::nccl_fabric fabric(api);
  result out;
  thrown told;
  try {
    belay::launch(
        belay::nccl::world(api, failing_nccl(fabric, how), belay::host::world(2, {.timeout = timeout}), options_of()),
        body<3, float>(out));
  } catch (const belay::error& problem) {
    told = {problem.what(), problem.kind()};
  }
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  return told;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A device whose context takes some of it, and an NCCL whose communicators do.
class taking_api : public fakes::device_api {
 public:
  static constexpr std::size_t context = 7'000;
  using device_api::device_api;
  status_type memory_info(belay::cuda::device_memory_info& room) {
    const status_type got = device_api::memory_info(room);
    const std::lock_guard lock(mutex_);
    room.free -= context + taken_[std::this_thread::get_id()];
    return got;
  }
  void take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    taken_[std::this_thread::get_id()] += bytes;
  }

 private:
  std::mutex mutex_;
  std::map<std::thread::id, std::size_t> taken_;  // by a rank's thread, whose device it is
};
class taking_nccl : public failing_nccl {
 public:
  static constexpr std::size_t of_parent = 40'000, of_group = 152;
  taking_nccl(fakes::nccl_fabric& fabric, one_failure& how, taking_api& from)
      : failing_nccl(fabric, how), from_(&from) {}
  status_type init(communicator_type& made, int ranks, const belay::nccl::unique_id& id, int rank,
                   belay::nccl::calls how) {
    from_->take(of_parent);
    return failing_nccl::init(made, ranks, id, rank, how);
  }
  status_type split(communicator_type of, int colour, int key, communicator_type& made, belay::nccl::calls how) {
    from_->take(of_group);
    return failing_nccl::split(of, colour, key, made, how);
  }

 private:
  taking_api* from_;
};

}  // namespace

TEST_CASE("a trainer over NCCL has the bits of the host: whole state on each rank") { check_stage<0>(); }
TEST_CASE("a trainer over NCCL has the bits of the host: divided optimizer state") { check_stage<1>(); }
TEST_CASE("a trainer over NCCL has the bits of the host: divided gradients") { check_stage<2>(); }
TEST_CASE("a trainer over NCCL has the bits of the host: divided parameters") { check_stage<3>(); }
TEST_CASE("a trainer over NCCL has the bits of the host: gradients that are rounded for the wire") {
  check_stage<0, belay::bf16>();
  check_stage<1, belay::bf16>();
  check_stage<2, belay::bf16>();
  check_stage<3, belay::bf16>();
}

TEST_CASE("ranks that are threads need a device each, else they are told of the world that shares one") {
  fakes::device_api api({.devices = 2});
  fakes::nccl_fabric fabric(api);
  CHECK(belay::cuda::placed_ranks(api, 2) == belay::cuda::rank_devices::one_each);
  CHECK(belay::cuda::placed_ranks(api, 3) == belay::cuda::rank_devices::one_shared);
  const belay::host::world threads(3);
  CHECK_THROWS_WITH_AS(belay::nccl::world(api, fakes::nccl_api(fabric), threads),
                       doctest::Contains("ranks that share one are those of belay::cuda::world"), belay::input_error);
  fakes::device_api none({.fail_at = 1});
  CHECK_THROWS_AS(static_cast<void>(belay::cuda::placed_ranks(none, 1)), belay::backend_error);
}

TEST_CASE("processes take the devices of their machine by their numbers, and fewer are refused by all") {
  fakes::device_api api({.order = work_order::late, .devices = 1});
  fakes::nccl_fabric fabric(api);
  result out;
  const auto train = body<3, float>(out);
  belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::processes(1), options_of()), train);
  CHECK_THROWS_WITH(
      belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::processes(2), options_of()), train),
      doctest::Contains(
          "2 ranks over NCCL on a machine of which a process sees 1 device: each takes one of its own, by "
          "its number among them, and rank 1 has none: take fewer ranks, or "));
  CHECK(api.calls().empty());  // this process has used none
}

TEST_CASE("what a rank leases of its device is held against what that has left, and a budget knows communicators") {
  result out;
  const auto refusal = [&](std::size_t memory, std::size_t budget) -> std::string {
    fakes::device_api api({.memory = memory, .devices = 2});
    fakes::nccl_fabric fabric(api);
    belay::launch_options options;
    options.budget[belay::tier::device] = budget;
    std::string what;
    try {
      belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(2), options_of()),
                    body<0, float>(out), options);
    } catch (const belay::plan_refused& problem) {
      what = problem.what();
    }
    CHECK(api.empty());
    CHECK(fabric.empty());
    return what;
  };
  const std::string full = refusal((1 << 16) + 4'000, std::size_t{1} << 30);
  CHECK(has(full, "rank 0 needs"));
  CHECK(has(full, "left beside its context and communicators"));
  CHECK(out.losses.empty());
  const std::string budget = refusal(std::size_t{1} << 30, 60'000);
  CHECK(has(budget, "communication, estimated"));
  CHECK(out.losses.empty());
  CHECK(refusal(std::size_t{1} << 30, 250'000).empty());
  CHECK(out.losses.size() == steps);
}

TEST_CASE("what communication takes of each device is measured at launch, when all groups have been made") {
  taking_api api({.order = work_order::late, .memory = 1 << 20, .devices = 2});
  fakes::nccl_fabric fabric(api);
  one_failure none;
  std::vector<belay::device_usage> told;
  belay::launch_options options;
  options.measured = [&](std::span<const belay::device_usage> usage) { told.assign(usage.begin(), usage.end()); };
  result out;
  std::size_t planned = 0;
  {
    belay::nccl::world world(api, taking_nccl(fabric, none, api), belay::host::world(2), options_of());
    const belay::rehearsal_result rehearsed = belay::rehearse(world, body<1, float>(out));
    planned = world.communication_bytes(rehearsed.meshes);
    belay::launch(world, body<1, float>(out), rehearsed, options);
  }
  REQUIRE(told.size() == 2);
  // Workspace, a barrier's word, and what calls use.
  const std::size_t own = belay::cuda::device_calls<taking_api>::room + 192 + 16;
  const std::size_t groups = 2;  // of all ranks, and of the data axis
  CHECK(planned >= own + (1 << 16) + groups * (1 << 12));
  for (const belay::device_usage& each : told)
    CHECK(each == belay::device_usage{1 << 20, taking_api::context,
                                      own + taking_nccl::of_parent + groups * taking_nccl::of_group, 0, planned});
  const std::string text = belay::device_usage_text(told), both = std::to_string(planned);
  CHECK(has(text, "context and others   7000 7000\n"));
  CHECK(has(text, "communication        106048 106048\n"));
  CHECK(has(text, "  planned for it     " + both + ' ' + both + '\n'));
  const auto first = std::find(none.names.begin(), none.names.end(), "all_reduce");
  CHECK(std::count(none.names.begin(), first, "split") == std::count(none.names.begin(), none.names.end(), "split"));
}

TEST_CASE("steps after the first ask devices for nothing") {
  fakes::device_api api({.order = work_order::late, .devices = 2});
  fakes::nccl_fabric fabric(api);
  std::vector<std::size_t> ended;
  result out;
  out.step_ended = [&] { ended.push_back(api.calls_so_far()); };
  belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(2), options_of()),
                body<3, float>(out));
  REQUIRE(ended.size() == steps);
  for (const char* call : {"allocate", "register_host", "make_stream", "make_event"})
    CHECK(std::count(api.calls().begin() + static_cast<std::ptrdiff_t>(ended[0]),
                     api.calls().begin() + static_cast<std::ptrdiff_t>(ended[2]), call) == 0);
}

TEST_CASE("a call of NCCL that fails, at once or later, is what a launch throws, and one that never ends is told") {
  one_failure none;
  CHECK(train_with(none).what.empty());
  const std::vector<std::string> names = none.names;
  REQUIRE(names.size() > 60);
  std::vector<std::string> tried;
  for (std::size_t k = 1; k <= names.size(); ++k) {
    const std::string& name = names[k - 1];
    if (std::count(tried.begin(), tried.end(), name) > 1 && k % 29 != 0) continue;
    tried.push_back(name);
    CAPTURE(name);
    CAPTURE(k);
    using failing_way = fakes::nccl_injection::failing_way;
    one_failure at_once{.what = {k, failing_way::fails}};
    const thrown got = train_with(at_once);
    CHECK((has(got.what, "rank 1: " + name) && has(got.what, "injected")));
    if (!has_peers(name)) continue;
    one_failure later{.what = {k, failing_way::asynchronous}};
    const thrown found = train_with(later);
    CHECK((has(found.what, "rank 1: ") && has(found.what, "injected")));
    one_failure never{.what = {k, failing_way::silent}};
    CHECK(train_with(never, std::chrono::milliseconds(200)).kind == belay::error_kind::communication);
  }
  CHECK(tried.size() > 12);
}

TEST_CASE("a call of a device that fails under a trainer over NCCL is what its launch throws, and nothing is left") {
  std::size_t calls = 0;
  for (std::size_t k = 0; k <= calls; k += 97) {  // which call of which rank, the threads decide
    CAPTURE(k);
    fakes::device_api api({.order = work_order::late, .fail_at = k, .devices = 2});
    fakes::nccl_fabric fabric(api);
    result out;
    try {
      belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(2), options_of()),
                    body<3, float>(out));
      if (k == 0) calls = api.calls().size() * 4 / 5;  // the rest ends something, which throws nothing
    } catch (const belay::error& problem) {
      CHECK(has(problem.what(), "injected"));
    }
    CHECK(fabric.empty());
    CHECK(api.empty());
  }
}
TEST_CASE("a heap over ranks that address no peer is refused by the rehearsal as by the run, one of its own by none") {
  fakes::device_api api({.devices = 2});
  fakes::nccl_fabric fabric(api);
  belay::nccl::world world(api, fakes::nccl_api(fabric), belay::host::world(2), options_of());
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const belay::usage_error& lacks) {
      return lacks.what();
    }
    return "";
  };
  const auto over_peers = [](belay::rank& rank) {
    belay::symmetric_heap<belay::group> heap(rank.world(), {.bytes = 4096});
  };
  const auto over_own = [](belay::rank& rank) {
    belay::symmetric_heap<belay::group> heap(belay::ranks_of_heap(rank.world()), {.bytes = 4096});
    CHECK(heap.lease(100, "rows").at(rank.rehearsed() ? 1 : 0) != nullptr);
  };
  const auto rehearsed = [&](const auto& body) {
    return refusal([&] { static_cast<void>(belay::rehearse(world, [&](belay::rank& rank, auto&) { body(rank); })); });
  };
  const auto run = [&](const auto& body) {
    return refusal([&] {
      world.run([&](auto& of_backend) {
        belay::rank rank(of_backend);
        body(rank);
      });
    });
  };
  CHECK(has(rehearsed(over_peers), "a symmetric heap needs a group whose ranks can address each other's memory"));
  CHECK(rehearsed(over_peers) == run(over_peers));
  CHECK(rehearsed(over_own).empty());
  CHECK(run(over_own).empty());
}

TEST_CASE("ranks over NCCL keep what they train in lower tiers, and go on from its checkpoint") {
  settings how{.stage = belay::zero_stage::parameters, .hidden = 1500};
  const result expected = on_host<float>(2, how);
  const train_bench::directory saved;
  how.optimizer = {.state = belay::tier::file, .folder = "/tmp", .chunk = belay::parameter_chunk};
  how.store.parameters = belay::tier::host;
  how.store.gradients = how.activations = belay::tier::pinned;
  how.checkpoints = saved.path;
  how.steps = 2;
  static_cast<void>(over_nccl<float>(2, how, {work_order::late}));
  how.steps = steps;
  const result rest = over_nccl<float>(2, how, {work_order::random, 1});
  CHECK(rest.from == 2);
  CHECK(rest.weights == expected.weights);
}
TEST_CASE("with sums::any NCCL adds gradients in its own order: near the host's results, and the same on all ranks") {
  constexpr int ranks = 3;
  for (const auto stage :
       {belay::zero_stage::none, belay::zero_stage::optimizer_state, belay::zero_stage::parameters}) {
    CAPTURE(static_cast<int>(stage));
    settings trains{.stage = stage};
    const result expected = on_host<float>(ranks, trains);
    std::vector<std::vector<float>> last(ranks);
    trains.last_layer = [&](int rank, std::vector<float> all) {
      last[static_cast<std::size_t>(rank)] = std::move(all);
    };
    for (const fakes::device_options& how : {fakes::device_options{.order = work_order::late, .devices = ranks},
                                             {.order = work_order::random, .seed = 1, .devices = ranks}}) {
      result out;
      const auto launch_with = [&](const belay::launch_options& options) {
        fakes::device_api api(how);
        fakes::nccl_fabric fabric(api);
        belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(ranks),
                                         belay::nccl::adds<belay::nccl::sums::any>{}, options_of()),
                      trained<float>(out, trains), options);
        CHECK(fabric.refusals().empty());
      };
      belay::launch_options little;
      little.budget[belay::tier::device] = 60'000;
      CHECK_THROWS_WITH(launch_with(little), doctest::Contains("communication, estimated; it adds in any order"));
      launch_with({});
      REQUIRE(out.losses.size() == expected.losses.size());
      for (std::size_t step = 0; step < out.losses.size(); ++step)
        CHECK(out.losses[step] == doctest::Approx(expected.losses[step]).epsilon(1e-5));
      CHECK(out.norms != expected.norms);  // the fake adds from the last rank to the first
      CHECK(!last[0].empty());
      for (const auto& each : last) CHECK(each == last[0]);
    }
  }
}
