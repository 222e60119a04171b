// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An optimizer whose state lives in a lower tier: the bits of one whose state does not, memory as planned in every
// tier, and what goes wrong with a file.
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/device/support/tier_file.hpp"
#include "unit/train/support/linear.hpp"

namespace {

using belay::stream_choice;
using belay::stream_policy;
using belay::tier;
using train_bench::linear;
using faulty = tier_files::by_thread::calls;

// 13,664 parameters: three chunks of 4,096 and a rest.
struct network {
  linear first{{"first.weight", {96, 64}}}, second{{"second.weight", {64, 96}}}, last{{"last.weight", {11, 64}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight), visit(last.weight); }
};

struct trained {
  std::vector<double> losses;
  std::vector<float> values;
  std::vector<float> state;  // of rank 0
  bool as_planned = true;
  std::array<std::size_t, belay::tier_count> peaks{};
  std::uint64_t copied = 0;
};

struct setting {
  int ranks = 1;
  stream_choice streams = {};
  belay::optimizer_memory memory = {.chunk = belay::parameter_chunk};
  std::size_t steps = 3;
  tier parameters = tier::device, gradients = tier::device;
  int shard_group = 0;
  std::size_t micro_batches = 1;
  std::string folder = {};  // of shards in a file
};

template <int Stage, class Files = belay::system_tier_file_calls, class Before>
trained train(const setting& how, const Before& before) {
  trained out;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size(), .shard_group = how.shard_group}};
    network net;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{},
                                 belay::store_options{.seed = 5,
                                                      .bucket_bytes = 20000,
                                                      .parameters = how.parameters,
                                                      .gradients = how.gradients,
                                                      .files = {.folder = how.folder, .piece = 4096}}};
    belay::gathers first{net.first, store}, second{net.second, store}, last{net.last, store};
    using store_type = decltype(store);
    belay::adamw<float, typename store_type::group_type, typename store_type::kit_type, Files> optimizer{
        store, {.decay = 0.1}, how.memory};
    std::vector<float> inputs(4 * 64), targets(4 * 11);
    for (auto number : run.steps(how.steps)) {
      if (!run.rehearsing()) {
        before(rank, number);
        std::mt19937 random(static_cast<unsigned>(10 * number + static_cast<std::size_t>(rank.number())));
        for (auto* values : {&inputs, &targets})
          for (float& x : *values) x = static_cast<float>(random() % 100) / 100;
      }
      belay::step step{run.engine(), store};
      step.micro_batches(how.micro_batches);
      const belay::view<const float, 2> x{inputs.data(), {4, 64}}, t{targets.data(), {4, 11}};
      for (std::size_t m = 0; m < how.micro_batches; ++m) {
        const auto scope = step.micro_batch(m);
        auto h = belay::forward(scope, first, belay::constant(x));
        auto g = belay::forward(scope, second, h.out());
        auto y = belay::forward(scope, last, g.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), t);
        grad = std::move(y).backward(grad);
        grad = std::move(g).backward(grad);
        std::move(h).backward(grad);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{4 * static_cast<std::uint64_t>(rank.size())});
      if (auto* ok = belay::committed(outcome)) {
        run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
        optimizer.apply(std::move(*ok), {.learning_rate = 1e-2, .clip = 1.0});
      }
    }
    for (const auto* layer : {&net.first, &net.second, &net.last}) {
      const auto whole = store.read(layer->weight);
      if (!run.rehearsing() && rank.number() == 0)
        out.values.insert(out.values.end(), whole.values().begin(), whole.values().end());
    }
    if (!run.rehearsing()) {
      if (rank.number() != 0) return;
      for (std::size_t t = 0; t < belay::tier_count; ++t) {
        const auto& meter = run.meters()[static_cast<tier>(t)];
        out.peaks[t] = meter.peak_bytes();
        out.as_planned = out.as_planned && run.planned().peak_bytes(static_cast<tier>(t)) == meter.peak_bytes();
      }
      out.copied = run.engine().times_of_copies().copied;
      const char* const parts[] = {"first_moment", "second_moment"};
      for (const char* part : parts)
        optimizer.each_state([&](const std::string& name, const auto&, auto values) {
          if (name == part) out.state.insert(out.state.end(), values.begin(), values.end());
        });
      CHECK(out.state.size() * sizeof(float) == optimizer.state_bytes());
    }
  };
  belay::launch(belay::host::world{how.ranks}, body, {.streams = how.streams});
  return out;
}
template <int Stage>
trained train(const setting& how) {
  return train<Stage>(how, [](auto&, std::size_t) {});
}

const stream_choice policies[] = {
    {}, {stream_policy::queued, 0}, {stream_policy::adversarial, 0}, {stream_policy::adversarial, 9}};

template <int Stage>
void expect_alike(int ranks, const stream_choice& resident_streams) {
  setting how{.ranks = ranks, .streams = resident_streams};
  const trained resident = train<Stage>(how);
  REQUIRE(resident.losses.size() == 3);
  CHECK(resident.as_planned);
  const tier_files::folder folder;
  for (const tier lower : {tier::pinned, tier::host, tier::file})
    for (const stream_choice& streams : policies) {
      INFO(ranks << " ranks, zero " << Stage << ", " << name(lower) << ", " << name(streams.policy) << ", seed "
                 << streams.seed);
      how.streams = streams;
      how.memory.state = lower;
      how.memory.folder = lower == tier::file ? folder.path : "";
      const trained got = train<Stage>(how);
      CHECK(got.losses == resident.losses);
      CHECK(got.values == resident.values);
      CHECK(got.state == resident.state);
      CHECK(got.as_planned);
      const auto of = [](tier which) { return static_cast<std::size_t>(which); };
      CHECK(got.peaks[of(tier::device)] < resident.peaks[of(tier::device)]);
      CHECK(got.peaks[of(lower)] > resident.peaks[of(lower)]);
      CHECK((got.copied > 0) == (streams.policy == stream_policy::queued));
      CHECK(folder.empty());
    }
}

}  // namespace

TEST_CASE("state in a lower tier trains to the bit as in device, and takes there what was planned") {
  expect_alike<0>(1, {});
  expect_alike<1>(2, {});
  expect_alike<2>(3, {});
  expect_alike<3>(2, {});
}

TEST_CASE("shards of parameters and gradients in a lower tier train to the bit, and leave device what is gathered") {
  const auto of = [](tier which) { return static_cast<std::size_t>(which); };
  const tier_files::folder folder;
  for (const int ranks : {1, 2, 3})
    for (const stream_choice& streams : policies)
      for (const tier lower : {tier::pinned, tier::host, tier::file}) {
        INFO(ranks << " ranks, " << name(lower) << ", " << name(streams.policy) << ", seed " << streams.seed);
        setting how{.ranks = ranks, .streams = streams, .micro_batches = 2, .folder = folder.path};
        const trained resident = train<3>(how);
        how.parameters = lower;
        const trained parameters = train<3>(how);
        how.gradients = lower;
        const trained both = train<3>(how);
        how.memory.state = tier::host;
        const trained all = train<3>(how);
        for (const trained* got : {&parameters, &both, &all}) {
          CHECK(got->losses == resident.losses);
          CHECK(got->values == resident.values);
          CHECK(got->state == resident.state);
          CHECK(got->as_planned);
          CHECK((got->peaks[of(tier::file)] > 0) == (lower == tier::file));
        }
        CHECK(folder.empty());
        if (ranks == 1) continue;  // one rank has no gathers in device when nothing is offloaded
        CHECK(parameters.peaks[of(tier::device)] < resident.peaks[of(tier::device)]);
        CHECK(both.peaks[of(tier::device)] < parameters.peaks[of(tier::device)]);
        CHECK(all.peaks[of(tier::device)] < both.peaks[of(tier::device)]);
      }
  setting how{.ranks = 2};
  const trained resident = train<2>(how);
  how.folder = folder.path;
  for (const tier lower : {tier::pinned, tier::file}) {
    how.gradients = lower;
    CHECK(train<2>(how).values == resident.values);
  }
  how = {.ranks = 4, .shard_group = 2, .micro_batches = 2};
  const trained replicated = train<3>(how);
  how.parameters = how.gradients = how.memory.state = tier::pinned;
  CHECK(train<3>(how).values == replicated.values);
  how.parameters = how.memory.state = tier::file;
  how.folder = how.memory.folder = folder.path;
  CHECK(train<3>(how).values == replicated.values);
}

// The unnamed files of `folder` that this process has open.
std::vector<std::string> open_files_of(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(each.path(), gone).string().starts_with(folder))
      out.push_back(each.path().string());
  }
  return out;
}

TEST_CASE("a file of shards that is truncated underneath ends the step that reads it, in a gather or a reduction") {
  const tier_files::folder folder;
  for (const auto& [ranks, shards] :
       {std::pair{1, &setting::parameters}, std::pair{2, &setting::parameters}, std::pair{2, &setting::gradients}})
    for (const stream_choice& streams : policies) {
      INFO(ranks << " ranks, " << name(streams.policy) << ", seed " << streams.seed);
      setting how{.ranks = ranks, .streams = streams, .folder = folder.path};
      how.*shards = tier::file;
      const auto truncates = [&](auto& rank, std::size_t number) {
        if (number != 2 || rank.number() != 0) return;
        const auto files = open_files_of(folder.path);
        REQUIRE(files.size() == static_cast<std::size_t>(ranks));
        for (const std::string& each : files) REQUIRE(::truncate(each.c_str(), 4096) == 0);
      };
      // A tier_file_error, or where a rank waits in a collective that its peer's copy was to come before, a comm_error.
      CHECK_THROWS_WITH_AS(train<3>(how, truncates), doctest::Contains("the file ends there, it was truncated"),
                           belay::error);
      CHECK(folder.empty());
    }
}

TEST_CASE("shards that are not there cannot lie in a lower tier, and none in a file without a folder") {
  setting how{.ranks = 2, .parameters = tier::pinned};
  CHECK_THROWS_WITH_AS(train<2>(how), doctest::Contains("shards of parameters lie in tier pinned, but belay::zero<2>"),
                       belay::usage_error);
  how = {.ranks = 2, .gradients = tier::host};
  CHECK_THROWS_WITH_AS(train<1>(how), doctest::Contains("shards of gradients lie in tier host, but belay::zero<1>"),
                       belay::usage_error);
  how = {.ranks = 2, .parameters = tier::file};
  CHECK_THROWS_WITH_AS(train<3>(how), doctest::Contains("parameters lie in tier file, which has no folder"),
                       belay::usage_error);
  how = {.ranks = 2, .gradients = tier::file};
  CHECK_THROWS_WITH_AS(train<3>(how), doctest::Contains("gradients lie in tier file, which has no folder"),
                       belay::usage_error);
  how = {.ranks = 4, .gradients = tier::file, .shard_group = 2, .folder = "/tmp"};
  CHECK_THROWS_WITH_AS(train<3>(how), doctest::Contains("gradients in tier file are not summed over shard groups"),
                       belay::usage_error);
  how = {.ranks = 2, .parameters = tier::host, .shard_group = 1};
  CHECK_THROWS_WITH_AS(train<3>(how), doctest::Contains("a shard group of one rank has no shards"), belay::usage_error);
}

TEST_CASE("ranks that own nothing, and chunks larger than all, are planned alike") {
  const tier_files::folder folder;
  setting how{.ranks = 5};  // four units of ownership
  const trained resident = train<1>(how);
  for (const std::size_t chunk : {belay::parameter_chunk, 64 * belay::parameter_chunk}) {
    how.memory = {.state = tier::file, .folder = folder.path, .chunk = chunk, .access = belay::file_access::thread};
    const trained got = train<1>(how);
    CHECK(got.losses == resident.losses);
    CHECK(got.state == resident.state);
    CHECK(got.as_planned);
  }
}

TEST_CASE("what cannot hold state is refused by name, before anything is allocated") {
  setting how;
  how.memory = {.state = tier::file, .folder = "/nowhere/at/all"};
  CHECK_THROWS_WITH_AS(train<1>(how), doctest::Contains("/nowhere/at/all: tier file: cannot open"),
                       belay::tier_file_error);
  how.memory = {.state = tier::pinned, .chunk = 100};
  CHECK_THROWS_WITH_AS(train<1>(how), doctest::Contains("chunks of 100 elements"), belay::usage_error);
}

TEST_CASE("a file that fails is named with its byte, on every policy, and nothing is left of it") {
  const tier_files::calm before;
  const tier_files::folder folder;
  const auto nothing = [](auto&, std::size_t) {};
  struct fault {
    bool reads;
    int code;
    const char* text;
  };
  constexpr std::size_t second = 2 * belay::parameter_chunk * sizeof(float);  // byte of the second chunk
  const fault faults[] = {{true, EIO, "cannot read 32768 bytes from byte 32768 on"},
                          {false, EIO, "cannot write 32768 bytes from byte 32768 on"},
                          {false, ENOSPC, "cannot write 32768 bytes from byte 32768 on"}};
  static_assert(second == 32768);
  for (const stream_choice& streams : policies)
    for (const fault& one : faults) {
      setting how{.streams = streams};
      how.memory = {.state = tier::file,
                    .folder = folder.path,
                    .chunk = belay::parameter_chunk,
                    .access = belay::file_access::thread};
      const auto fails_in_step_2 = [&](auto&, std::size_t number) {
        if (number != 2) return;
        tier_files::now.spares_reads = !one.reads;
        tier_files::now.result = -one.code;
        tier_files::now.bad_offset = second;
      };
      CHECK_THROWS_WITH_AS((train<1, faulty>(how, fails_in_step_2)), doctest::Contains(one.text),
                           belay::tier_file_error);
      tier_files::now.bad_offset = -1;
      tier_files::now.spares_reads = false;
      CHECK(folder.empty());
    }
  setting how;
  how.memory = {.state = tier::file,
                .folder = folder.path,
                .chunk = belay::parameter_chunk,
                .access = belay::file_access::thread};
  tier_files::now.most_bytes = 8192;  // short calls are continued
  CHECK(train<1, faulty>(how, nothing).losses == train<1>(setting{}).losses);
}

TEST_CASE("a file that is truncated underneath ends the step that reads it") {
  const tier_files::calm before;
  const tier_files::folder folder;
  setting how;
  how.memory = {.state = tier::file,
                .folder = folder.path,
                .chunk = belay::parameter_chunk,
                .access = belay::file_access::thread};
  const auto truncates = [](auto&, std::size_t number) {
    if (number == 3) REQUIRE(::ftruncate(tier_files::now.descriptor, 40960) == 0);
  };
  CHECK_THROWS_WITH_AS((train<1, faulty>(how, truncates)), doctest::Contains("the file ends there, it was truncated"),
                       belay::tier_file_error);
}
