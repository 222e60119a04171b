// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Slots of ranks that share a device, and the workspace of ranks over NCCL, sized by what a plan knows of collectives:
// how many rounds those take, what the plan says, and what the device has less.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/comm.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class counting_api : public fakes::device_api {
 public:
  using device_api::device_api;
  status_type record(event_type which, stream_type on) {
    ++records;
    return device_api::record(which, on);
  }
  std::atomic<std::size_t> records = 0;
};

// The rounds of `call` in a group: each records two events of a rank, and a barrier has one round.
struct counted_rounds {
  counting_api* api;
  const belay::group* over;

  std::size_t of(const auto& call) const {
    return 1 + (records_of(call) - records_of([&] { over->barrier(); })) / (2 * static_cast<std::size_t>(over->size()));
  }
  std::size_t records_of(const auto& call) const {
    over->control().barrier();
    const std::size_t before = api->records;
    over->control().barrier();
    call();
    over->control().barrier();
    const std::size_t after = api->records;
    over->control().barrier();
    return after - before;
  }
};

// Sums and sends `count` floats, each 1 + the rank's number before, along the axis of data.
struct talking {
  counting_api* api;
  std::size_t count;
  std::size_t *rounds_of_sum, *rounds_of_broadcast;

  void operator()(belay::rank& rank, auto& run) const {
    const belay::mesh mesh(rank, {.data = rank.size()});
    const std::span<float> values = run.template lease<float>(belay::tier::device, count, "values");
    auto& kit = run.engine().kit();
    const auto fill = [&] {
      kit.each(count, belay::kernel::fill<float>{values.data(), static_cast<float>(1 + rank.unasked_rank())});
      kit.stream().synchronize();
    };
    if (run.rehearsing()) {
      mesh.data().all_reduce(values, belay::sum);
      return mesh.data().broadcast(std::span<float>(values), 0);
    }
    const counted_rounds rounds{api, &mesh.data()};
    fill();
    const std::size_t sum = rounds.of([&] { mesh.data().all_reduce(values, belay::sum); });
    const auto all = static_cast<float>(rank.size() * (rank.size() + 1) / 2);
    CHECK(is_everywhere(mesh.data(), values, all));
    fill();
    const std::size_t broadcast = rounds.of([&] { mesh.data().broadcast(std::span<float>(values), 0); });
    CHECK(is_everywhere(mesh.data(), values, 1));
    if (rank.number() == 0) *rounds_of_sum = sum, *rounds_of_broadcast = broadcast;
  }

 private:
  static bool is_everywhere(const belay::group& of, std::span<const float> values, float wanted) {
    std::vector<float> got(values.size());
    if (!got.empty())
      of.device()->fetch(got.data(), values.data(), values.size_bytes(), belay::start_order(belay::where::current()));
    return got == std::vector<float>(values.size(), wanted);
  }
};

// The bytes of the device that nobody has left while `ranks` communicate and do nothing else.
std::size_t taken_by(counting_api& api, const auto& world) {
  std::atomic<std::size_t> most = 0;
  world.run([&](auto& rank) {
    rank.control().barrier();
    belay::cuda::device_memory_info room;
    rank.gpu().expect(api.memory_info(room), "memory_info", 0, belay::where::current());
    if (rank.number() == 0) most = room.total - room.free;
    rank.control().barrier();
  });
  return most;
}

}  // namespace

TEST_CASE("one collective of a planned bucket is one round, up to 16 MiB a rank, whatever its size") {
  for (const int ranks : {2, 3})
    for (const std::size_t bytes : {0 * mib, std::size_t{4}, std::size_t{4 * 1023}, mib, mib + 4, 3 * mib, 16 * mib}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      if (bytes > 3 * mib && ranks == 3) continue;  // parts of 3 are longer in all
      counting_api api;
      std::size_t sum = 0, broadcast = 0;
      belay::launch(belay::cuda::world(api, belay::host::world(ranks)),
                    talking{&api, bytes / sizeof(float), &sum, &broadcast});
      CHECK(sum == 1);
      CHECK(broadcast == 1);
      CHECK(api.empty());
    }
}

TEST_CASE("what is larger than the largest slots, or than those of a world without a plan, takes several rounds") {
  counting_api api;
  std::size_t sum = 0, broadcast = 0;
  belay::launch(belay::cuda::world(api, belay::host::world(2)),
                talking{&api, (16 * mib + 4) / sizeof(float), &sum, &broadcast});
  CHECK(sum == 2);
  CHECK(broadcast == 2);
  const belay::cuda::world world(api, belay::host::world(2));
  std::vector<belay::cuda::device_memory<counting_api>> memory;
  for (int rank = 0; rank < 2; ++rank) memory.emplace_back(world.gpu(rank), 5 * mib);
  world.run([&](auto& own) {
    belay::rank rank(own);
    const std::span<float> values(reinterpret_cast<float*>(memory[static_cast<std::size_t>(own.number())].data()),
                                  5 * mib / sizeof(float));
    const counted_rounds rounds{&api, &rank.world()};
    CHECK(rounds.of([&] { rank.world().broadcast(values, 0); }) == 5);
  });
}

TEST_CASE("the plan of ranks that share a device has what they communicate over, to the byte") {
  for (const std::size_t bytes : {std::size_t{4}, 3 * mib, 40 * mib}) {
    CAPTURE(bytes);
    counting_api api;
    std::size_t unused = 0;
    const belay::cuda::world world(api, belay::host::world(3));
    const talking body{&api, bytes / sizeof(float), &unused, &unused};
    const belay::rehearsal_result planned = belay::rehearse(world, body);
    // The world's group and that of data are planned; six more have room for the least.
    const std::size_t slot = bytes < mib ? mib : bytes < 16 * mib ? 4 * mib : 16 * mib;
    const std::size_t row = 2 * (slot + 7 * mib) + belay::cuda::device_calls<counting_api>::room;
    CHECK(planned.communication.bytes == row);
    CHECK(planned.text().find("communication") != std::string::npos);
    CHECK(planned.text().find(std::to_string(row)) != std::string::npos);
    world.make_room_for(planned.calls);
    CHECK(taken_by(api, world) == 3 * row);
  }
  // Budgets count it.
  counting_api api;
  std::size_t unused = 0;
  belay::launch_options options;
  options.budget[belay::tier::device] = 17 * mib;
  CHECK_THROWS_WITH_AS(belay::launch(belay::cuda::world(api, belay::host::world(2)),
                                     talking{&api, 3 * mib / sizeof(float), &unused, &unused}, options),
                       doctest::Contains("communication"), belay::plan_refused);
  CHECK(api.empty());
}

TEST_CASE("what ranks would communicate over is held against the device before it is made, and a refusal says so") {
  counting_api api({.memory = 64 * mib});
  std::size_t sum = 0, broadcast = 0;
  const belay::cuda::world world(api, belay::host::world(2));
  const auto launch = [&](std::size_t bytes) {
    belay::launch(world, talking{&api, bytes / sizeof(float), &sum, &broadcast});
  };
  CHECK_THROWS_WITH_AS(launch(16 * mib), doctest::Contains("the 2 ranks of this device need"), belay::plan_refused);
  CHECK(sum == 0);
  launch(2 * mib);
  CHECK(sum == 1);
}

TEST_CASE("groups that a plan does not know, and a second one of ranks that it does, have the least slots") {
  counting_api api;
  std::size_t unused = 0;
  const belay::cuda::world world(api, belay::host::world(2));
  const belay::rehearsal_result planned =
      belay::rehearse(world, talking{&api, 3 * mib / sizeof(float), &unused, &unused});
  world.make_room_for(planned.calls);
  std::vector<belay::cuda::device_memory<counting_api>> memory;
  for (int rank = 0; rank < 2; ++rank) memory.emplace_back(world.gpu(rank), 3 * mib);
  world.run([&](auto& own) {
    belay::rank rank(own);
    const std::span<float> values(reinterpret_cast<float*>(memory[static_cast<std::size_t>(own.number())].data()),
                                  3 * mib / sizeof(float));
    const int both[] = {0, 1};
    for (const std::size_t expected : {std::size_t{1}, std::size_t{3}, std::size_t{3}}) {
      const belay::group next = rank.group(both);
      const counted_rounds rounds{&api, &next};
      CHECK(rounds.of([&] { next.broadcast(values, 0); }) == expected);
    }
  });
}

namespace {

struct nccl_counts {
  std::atomic<std::size_t> groups = 0, averages = 0;
};
class counting_nccl : public fakes::nccl_api {
 public:
  counting_nccl(fakes::nccl_fabric& fabric, nccl_counts& into) : nccl_api(fabric), into_(&into) {}
  counting_nccl(const counting_nccl& other) : nccl_api(other.fabric()), into_(other.into_) {}
  status_type group_end() {
    ++into_->groups;
    return nccl_api::group_end();
  }
  status_type all_reduce(const void* from, void* to, std::size_t count, belay::dtype type, belay::reduction how,
                         communicator_type on, stream_type stream) {
    into_->averages += how == belay::reduction::average ? 1U : 0U;
    return nccl_api::all_reduce(from, to, count, type, how, on, stream);
  }

 private:
  nccl_counts* into_;
};

struct averaging {
  std::size_t count;

  void operator()(belay::rank& rank, auto& run) const {
    const belay::mesh mesh(rank, {.data = rank.size()});
    const std::span<float> values = run.template lease<float>(belay::tier::device, count, "values");
    run.engine().kit().each(count, belay::kernel::fill<float>{values.data(), static_cast<float>(rank.number())});
    run.engine().synchronize();
    mesh.data().all_reduce(values, belay::average);
    if (run.rehearsing()) return;
    std::vector<float> got(count);
    mesh.data().device()->fetch(got.data(), values.data(), values.size_bytes(),
                                belay::start_order(belay::where::current()));
    CHECK(got == std::vector<float>(count, 0.5F));
  }
};

constexpr belay::nccl::world_options known{.parent_bytes = 1 << 16, .group_bytes = 1 << 12};

}  // namespace

TEST_CASE("sums over NCCL in rank order take one round of a workspace that is planned for them, 8 to 64 MiB") {
  struct expected {
    std::size_t bytes, workspace, rounds;
  };
  for (const auto& [bytes, workspace, rounds] :
       {expected{4, 8, 1}, expected{8 * mib, 8, 1}, expected{20 * mib, 32, 1}, expected{80 * mib, 64, 2}}) {
    CAPTURE(bytes);
    fakes::device_api api({.devices = 2});
    fakes::nccl_fabric fabric(api);
    nccl_counts counts;
    std::vector<belay::device_usage> told;
    belay::launch_options options;
    options.measured = [&](std::span<const belay::device_usage> usage) { told.assign(usage.begin(), usage.end()); };
    belay::nccl::world world(api, counting_nccl(fabric, counts), belay::host::world(2), known);
    const averaging body{bytes / sizeof(float)};
    const belay::rehearsal_result planned = belay::rehearse(world, body);
    belay::launch(world, body, planned, options);
    CHECK(counts.groups == 2 * 2 * rounds);  // of each of two ranks: parts to their owners, and sums back
    CHECK(counts.averages == 0);
    const std::size_t own = workspace * mib + 16 + belay::cuda::device_calls<fakes::device_api>::room;
    REQUIRE(told.size() == 2);
    for (const belay::device_usage& each : told) {
      CHECK(each.communication == own);
      CHECK(each.planned == own + (1 << 16) + 2 * (1 << 12));
    }
    CHECK(planned.communication.bytes == told[0].planned);
    CHECK(planned.text().find("communication, estimated") != std::string::npos);
    CHECK(fabric.refusals().empty());
  }
}

TEST_CASE("where bits are not asked for NCCL averages by itself, and no workspace is planned for it") {
  fakes::device_api api({.devices = 2});
  fakes::nccl_fabric fabric(api);
  nccl_counts counts;
  belay::nccl::world world(api, counting_nccl(fabric, counts), belay::host::world(2),
                           belay::nccl::adds<belay::nccl::sums::any>{}, known);
  const averaging body{20 * mib / sizeof(float)};
  const belay::rehearsal_result planned = belay::rehearse(world, body);
  belay::launch(world, body, planned);
  CHECK(counts.averages == 2);
  CHECK(counts.groups == 0);
  CHECK(planned.communication.bytes < 9 * mib);
  CHECK(fabric.refusals().empty());
}
