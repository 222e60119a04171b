// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The example trainer over ranks that share a device of the host, whose memory the host cannot address and whose
// streams are late on purpose, and over ranks that have such a device each and an NCCL of the host: it trains,
// evaluates and samples with the bits that it has over ranks of the host.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"
#include "laws/support/pairwise.hpp"
#include "test_length.hpp"
#include "unit/report/support/trace_format.hpp"
#include "unit/train/support/directory.hpp"
#include "unit/train_moe/support/small_training.hpp"

using namespace small_training;

namespace {

// In bf16 a device makes one product of several: so does the host that it is compared with.
struct joining_host_kit : belay::host_kit<> {
  using belay::host_kit<>::host_kit;
  static constexpr bool joins_products = true;
};

template <class T = float>
record on_host(const options& run) {
  using kit_type = std::conditional_t<std::is_same_v<T, float>, belay::host_kit<>, joining_host_kit>;
  return trained<T>(run, [&](const auto& body) {
    belay::launch<kit_type>(belay::host::world(static_cast<int>(run.mesh.ranks())), body);
  });
}
template <class T = float>
record on_device(const options& run, fakes::forgetful_api& api, belay::trace_file* trace = nullptr) {
  const record out = trained<T>(
      run,
      [&](const auto& body) {
        const belay::host::world control(static_cast<int>(run.mesh.ranks()));
        belay::launch(belay::cuda::world(api, control, {.slot_bytes = 2048}), body);
      },
      trace);
  CHECK(api.empty());
  const auto launches = std::count(api.calls().begin(), api.calls().end(), "launch");
  CHECK(launches == (run.graphs == belay::graph_use::none ? 0 : 3 * (static_cast<std::ptrdiff_t>(run.steps) - 1)));
  return out;
}
template <class T = float>
record on_device(const options& run, const fakes::device_options& how, belay::trace_file* trace = nullptr,
                 fakes::forgets what = fakes::forgets::nothing) {
  fakes::forgetful_api api(how, what);
  return on_device<T>(run, api, trace);
}
template <class T>
std::ptrdiff_t products_on_device(const options& run) {
  fakes::forgetful_api api({fakes::work_order::eager}, fakes::forgets::nothing);
  static_cast<void>(on_device<T>(run, api));
  return std::count(api.calls().begin(), api.calls().end(), "product");
}

// Over NCCL, with little to communicate with, so that sums take several rounds.
template <class T = float>
record on_devices(const options& run, fakes::device_options how, belay::trace_file* trace = nullptr,
                  fakes::forgets what = fakes::forgets::nothing) {
  const int ranks = static_cast<int>(run.mesh.ranks());
  how.devices = ranks;
  fakes::forgetful_api api(how, what);
  fakes::nccl_fabric fabric(api);
  const belay::nccl::world_options room{
      .ranks = {.workspace_bytes = 1024, .watch_period = std::chrono::milliseconds(5)},
      .parent_bytes = 1 << 16,
      .group_bytes = 1 << 12};
  const record out = trained<T>(
      run,
      [&](const auto& body) {
        belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(ranks), room), body);
      },
      trace);
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  const auto launches = std::count(api.calls().begin(), api.calls().end(), "launch");
  CHECK(launches ==
        (run.graphs == belay::graph_use::none ? 0 : 3 * ranks * (static_cast<std::ptrdiff_t>(run.steps) - 1)));
  return out;
}

void check_run(const options& run) {
  INFO(run.mesh.text() << ", zero " << static_cast<int>(run.zero));
  const record expected = on_host(run);
  REQUIRE(expected.losses.size() == run.steps);
  CHECK(expected.losses[2] < expected.losses[0]);
  CHECK(expected.text.size() == 7);
  for (const fakes::device_options& how :
       {fakes::device_options{fakes::work_order::late}, {fakes::work_order::random, 1}})
    CHECK(on_device(run, how) == expected);
  if (run.mesh.ranks() > 1) CHECK(on_devices(run, {fakes::work_order::random, 2}) == expected);
}
void check_mesh(belay::axes mesh, belay::zero_stage zero) { check_run(small_run(mesh, zero)); }

// What a run may be: of each column one value. The last says whether its ranks share a device.
constexpr belay::axes meshes[] = {
    {}, {.pipeline = 2}, {.data = 2}, {.pipeline = 2, .data = 2}, {.data = 2, .expert = 2}};
constexpr belay::tier tiers[] = {belay::tier::device, belay::tier::pinned, belay::tier::host, belay::tier::file};
enum columns : std::size_t {
  mesh,
  zero,
  recompute,
  optimizer_tier,
  shard_tier,
  activation_tier,
  devices,
  column_count
};
constexpr unsigned values_of[column_count] = {5, 4, 3, 4, 4, 4, 2};
using row_type = laws::setting_row<column_count>;

options run_of(const row_type& row) {
  options run = small_run(meshes[row[mesh]], static_cast<belay::zero_stage>(row[zero]));
  run.recompute = static_cast<recompute_kind>(row[recompute]);
  run.optimizer_tier = tiers[row[optimizer_tier]];
  run.activation_tier = tiers[row[activation_tier]];
  if (run.zero >= belay::zero_stage::gradients) run.gradient_tier = tiers[row[shard_tier]];
  if (run.zero >= belay::zero_stage::parameters) run.parameter_tier = tiers[row[shard_tier]];
  return run;
}
// Rows in which every two values of two columns meet that can.
std::vector<row_type> pairwise_rows() {
  std::vector<row_type> all;
  unsigned count = 1;
  for (const unsigned values : values_of) count *= values;
  for (unsigned number = 0; number < count; ++number) {
    unsigned rest = number;
    row_type row;
    for (std::size_t c = 0; c < column_count; ++c) row[c] = rest % values_of[c], rest /= values_of[c];
    const bool has_shards = static_cast<belay::zero_stage>(row[zero]) >= belay::zero_stage::gradients;
    if (has_shards || row[shard_tier] == 0) all.push_back(row);
  }
  return laws::pairwise(all);
}

}  // namespace

TEST_CASE("the trainer over a device has the bits of the host: one rank") { check_mesh({}, belay::zero_stage::none); }
TEST_CASE("the trainer over a device has the bits of the host: a pipeline") {
  check_mesh({.pipeline = 2}, belay::zero_stage::optimizer_state);
}
TEST_CASE("the trainer over a device has the bits of the host: data-parallel ranks") {
  check_mesh({.data = 2}, belay::zero_stage::gradients);
}
TEST_CASE("the trainer over a device has the bits of the host: divided parameters of a pipeline") {
  check_mesh({.pipeline = 2, .data = 2}, belay::zero_stage::parameters);
}
TEST_CASE("the trainer over a device has the bits of the host: divided experts") {
  check_mesh({.data = 2, .expert = 2}, belay::zero_stage::optimizer_state);
}
TEST_CASE("the trainer over a device has the bits of the host: ranks that hold two stages") {
  for (const char* schedule : {"interleaved:2", "zb-v"}) {
    CAPTURE(schedule);
    options run = small_run({.pipeline = 2}, belay::zero_stage::optimizer_state);
    run.model.layers = 4;
    run.schedule = schedule;
    check_run(run);
  }
}
TEST_CASE("the trainer over a device has the bits of the host: what lives in lower tiers") {
  options run = small_run({.pipeline = 2, .data = 2}, belay::zero_stage::parameters);
  run.optimizer_tier = run.gradient_tier = belay::tier::host;
  run.parameter_tier = run.activation_tier = belay::tier::pinned;
  check_run(run);
}
TEST_CASE_TEMPLATE("the trainer over devices has the bits of the host: meshes, ZeRO, recompute and tiers pairwise", T,
                   float, belay::bf16) {
  constexpr bool narrow = sizeof(T) == 2;
  const std::vector<row_type> rows = pairwise_rows();
  const std::size_t step = is_soak() ? 1 : only_a_sample() ? 9 : narrow ? 8 : 4;
  for (std::size_t k = narrow && !is_soak() ? 2 : 0; k < rows.size(); k += step) {
    CAPTURE(k);
    const train_bench::directory folder;
    options run = run_of(rows[k]);
    run.dtype = narrow ? belay::dtype::bf16 : belay::dtype::f32;
    if (uses_files(run)) run.tier_folder = folder.path;
    INFO(run.mesh.text() << ", zero " << static_cast<int>(run.zero) << ", recompute " << rows[k][recompute]
                         << ", optimizer " << name(run.optimizer_tier) << ", parameters " << name(run.parameter_tier)
                         << ", gradients " << name(run.gradient_tier) << ", activations " << name(run.activation_tier));
    const fakes::device_options how = k % 2 == 0 ? fakes::device_options{fakes::work_order::late}
                                                 : fakes::device_options{fakes::work_order::random, k};
    CHECK((rows[k][devices] == 0 ? on_device<T>(run, how) : on_devices<T>(run, how)) == on_host<T>(run));
  }
}
TEST_CASE("a step of a rank waits for the device three times, however many micro-batches and parameters there are") {
  const auto waits = [](options run, std::size_t micro_batches, std::size_t layers) {
    run.micro_batches = micro_batches;
    run.model.layers = layers;
    const auto all = [&run](std::size_t steps) {
      run.steps = steps;
      fakes::forgetful_api api({fakes::work_order::late}, fakes::forgets::nothing);
      static_cast<void>(on_device(run, api));
      return std::count(api.calls().begin(), api.calls().end(), "await");
    };
    return all(5) - all(4);
  };
  const options run = small_run({}, belay::zero_stage::none);
  for (const std::size_t micro_batches : {1U, 4U})
    for (const std::size_t layers : {2U, 3U}) CHECK(waits(run, micro_batches, layers) <= 3);
}

TEST_CASE("in bf16 queries, keys and values are one product on a device, however their parameters are divided") {
  for (const belay::zero_stage zero : {belay::zero_stage::none, belay::zero_stage::optimizer_state,
                                       belay::zero_stage::gradients, belay::zero_stage::parameters}) {
    options run = small_run({.data = 2}, zero);
    const auto each = products_on_device<float>(run);
    run.dtype = belay::dtype::bf16;
    const auto at_once = products_on_device<belay::bf16>(run);
    // Two in the forward and four in the backward of each layer and micro-batch; more in evaluation and sample.
    const std::size_t saved = run.steps * run.micro_batches * run.model.layers * 6;
    CHECK(each - at_once > static_cast<std::ptrdiff_t>(saved));
  }
}
TEST_CASE_TEMPLATE("rows of that table see a wait that is forgotten: within a rank, and between ranks", T, float,
                   belay::bf16) {
  // What is read too early may be an index, which a release build does not look at.
  if constexpr (!belay::checked(belay::check_level::local)) return;
  options run = small_run({.data = 2}, belay::zero_stage::parameters);
  run.dtype = sizeof(T) == 2 ? belay::dtype::bf16 : belay::dtype::f32;
  const record expected = on_host<T>(run);
  const auto differs = [&](const auto& train) {
    try {
      return train() != expected;
    } catch (const std::exception&) {  // of numbers that are none, of ranks that disagree
      return true;
    }
  };
  const fakes::device_options late{fakes::work_order::late};
  using fakes::forgets;
  CHECK(!differs([&] { return on_device<T>(run, late); }));
  CHECK(differs([&] { return on_device<T>(run, late, nullptr, forgets::own); }));
  CHECK(differs([&] { return on_device<T>(run, late, nullptr, forgets::peers); }));
  CHECK(!differs([&] { return on_devices<T>(run, late); }));
  CHECK(differs([&] { return on_devices<T>(run, late, nullptr, forgets::own); }));
}
struct one_device {
  static record train(const options& run, const fakes::device_options& how, belay::trace_file* trace = nullptr) {
    return on_device(run, how, trace);
  }
};
struct device_each {
  static record train(const options& run, const fakes::device_options& how, belay::trace_file* trace = nullptr) {
    return on_devices(run, how, trace);
  }
};
TEST_CASE_TEMPLATE(
    "a traced step of the trainer over devices has its ranks' layers and actions, and the bits of others", World,
    one_device, device_each) {
  const train_bench::directory folder;
  const options run = small_run({.pipeline = 2}, belay::zero_stage::none);
  belay::trace_file file(folder.path + "/trace");
  const record got_here = World::train(run, {fakes::work_order::late}, &file), expected = on_host(run);
  CHECK(got_here == expected);
  CHECK(!file.take_problem());
  for (const double bubble : expected.bubbles) CHECK((bubble >= 0 && bubble < 1));
  REQUIRE(got_here.bubbles.size() == 3);
  CHECK((std::isnan(got_here.bubbles[0]) && std::isnan(got_here.bubbles[2])));  // not traced: not known
  if (std::is_same_v<World, one_device>) CHECK((got_here.bubbles[1] > 0 && got_here.bubbles[1] < 1));
  // A tick of this device is a millisecond, and no host's; when a rank's ticks begin, the host's load says.
  constexpr double clocks_differ = std::numeric_limits<double>::infinity();
  const report_test::read_trace got = report_test::checked_trace(folder.path + "/trace", 2, clocks_differ);
  CHECK(got.file["otherData"]["unfinished"] == 0);
  CHECK(got.file["otherData"]["forgotten"] == 0);
  CHECK(got.flows == 2 * 4);  // from a send to its receive
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(got.of(rank, "cat", "action").size() == 2 * 4);  // forward and backward of each micro-batch
    CHECK(got.of(rank, "cat", "layer").size() >= 2 * 4);
    CHECK(got.of(rank, "name", "optimizer").size() == 1);
    CHECK(got.of(rank, "name", "exchange").size() >= 4);  // what is handed on, there and back, some at once
    for (const auto& each : got.of(rank, "cat", "layer")) CHECK(double(each["dur"]) > 0);
  }
}
TEST_CASE("the trainer over a device has the bits of the host: its steps are launches of graphs") {
  options run = small_run({}, belay::zero_stage::none);
  run.steps = 5;
  const record expected = on_host(run);
  run.graphs = belay::graph_use::captured;
  for (const fakes::device_options& how :
       {fakes::device_options{fakes::work_order::late}, {fakes::work_order::random, 1}})
    CHECK(on_device(run, how) == expected);
}
TEST_CASE("the trainer over devices of its ranks has the bits of the host: its steps are launches of graphs") {
  options run = small_run({.pipeline = 2, .data = 2}, belay::zero_stage::parameters);
  run.steps = 5;
  const record expected = on_host(run);
  run.graphs = belay::graph_use::captured;
  for (const fakes::device_options& how :
       {fakes::device_options{fakes::work_order::late}, {fakes::work_order::random, 1}})
    CHECK(on_devices(run, how) == expected);
}
TEST_CASE("the trainer over a device has the bits of the host: launches copy what lives in lower tiers") {
  for (const belay::axes mesh : {belay::axes{}, belay::axes{.pipeline = 2, .data = 2}}) {
    options run = small_run(mesh, belay::zero_stage::parameters);
    run.steps = 5;
    run.optimizer_tier = run.gradient_tier = belay::tier::host;
    run.parameter_tier = run.activation_tier = belay::tier::pinned;
    const record expected = on_host(run);
    run.graphs = belay::graph_use::captured;
    const fakes::device_options how{fakes::work_order::late};
    CHECK((mesh.ranks() == 1 ? on_device(run, how) : on_devices(run, how)) == expected);
  }
}
TEST_CASE("the trainer over devices of its ranks has the bits of the host: launches sum over shard groups") {
  options run = small_run({.data = 4, .shard_group = 2}, belay::zero_stage::parameters);
  run.steps = 5;
  const record expected = on_host(run);
  run.graphs = belay::graph_use::captured;
  CHECK(on_devices(run, {fakes::work_order::late}) == expected);
}
TEST_CASE_TEMPLATE("a run goes on from a checkpoint of devices, on them and on the host", World, one_device,
                   device_each) {
  for (const auto& [mesh, zero] : {std::pair{belay::axes{.data = 2}, belay::zero_stage::gradients},
                                   std::pair{belay::axes{.pipeline = 2, .data = 2}, belay::zero_stage::parameters}}) {
    const train_bench::directory folder;
    options run = small_run(mesh, zero);
    const record uninterrupted = on_host(run);
    run.checkpoint = {.folder = folder.path, .every = 2};
    const record whole = World::train(run, {fakes::work_order::late});
    CHECK(whole == uninterrupted);  // writing one changes nothing
    run.checkpoint.from = belay::resume_from::newest;
    run.checkpoint.every = 0;
    for (const record& rest : {on_host(run), World::train(run, {fakes::work_order::random, 1})}) {
      REQUIRE(rest.losses.size() == 1);  // after the second step
      CHECK(rest.losses[0] == whole.losses[2]);
      CHECK(rest.norms[0] == whole.norms[2]);
      CHECK(rest.evaluated == whole.evaluated);
      CHECK(rest.text == whole.text);
    }
  }
}
