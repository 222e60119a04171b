// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What leaves a device and comes back to it, over a device of the host: checkpoints, and what lies in lower tiers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "unit/train/support/device_trainer.hpp"
#include "unit/train/support/directory.hpp"

using namespace device_trainer;
using belay::tier;
using belay::zero_stage;
using fakes::work_order;
using train_bench::directory;

namespace {

template <class T>
result on_host(int ranks, const settings& how) {
  result out;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks), trained<T>(out, how));
  return out;
}
template <class T>
result on_device(int ranks, const settings& how, const fakes::device_options& order) {
  fakes::device_api api(order);
  result out;
  belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 512}), trained<T>(out, how));
  CHECK(api.empty());
  return out;
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
// The files of the checkpoint of `step`, the manifest aside, without the number that each run draws.
std::vector<std::string> files_of(const std::string& folder, int step) {
  const std::string mark = "\"checkpoint\":\"";
  std::vector<std::string> paths, out;
  for (const auto& each : std::filesystem::directory_iterator(folder + "/step-0000000" + std::to_string(step)))
    if (each.path().extension() == ".safetensors") paths.push_back(each.path().string());
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    std::string text = text_of(path);
    const std::size_t number = text.find(mark);
    REQUIRE(number != std::string::npos);
    text.replace(number + mark.size(), 16, 16, '0');
    out.push_back(std::filesystem::path(path).filename().string() + "\n" + text);
  }
  return out;
}

enum class offloaded_part { optimizer, gradients, parameters, activations, between_steps };
void offload(settings& how, offloaded_part what, tier in) {
  how.optimizer.chunk = belay::parameter_chunk;
  how.optimizer.folder = how.store.files.folder = "/tmp";
  if (what == offloaded_part::optimizer) how.optimizer.state = in;
  if (what == offloaded_part::gradients) how.store.gradients = in;
  if (what == offloaded_part::parameters) how.store.parameters = in;
  if (what == offloaded_part::activations) how.activations = in;
  if (what == offloaded_part::between_steps) how.between_steps = in;
}

template <class T>
void check_resumed(const settings& whole, int ranks, const fakes::device_options& order, const settings& of_device) {
  CAPTURE(static_cast<int>(whole.stage));
  CAPTURE(ranks);
  const result expected = on_host<T>(ranks, whole);
  REQUIRE(expected.losses.size() == steps);
  const directory host, device;
  settings on = of_device;
  on.steps = 2;
  on.checkpoints = host.path;
  static_cast<void>(on_host<T>(ranks, on));
  on.checkpoints = device.path;
  static_cast<void>(on_device<T>(ranks, on, order));
  CHECK(files_of(device.path, 2).size() >= 2);
  CHECK(files_of(device.path, 2) == files_of(host.path, 2));
  on.steps = steps;
  const result here = on_device<T>(ranks, on, order);  // from its own
  on.checkpoints = host.path;
  const result there = on_device<T>(ranks, on, order);  // from the host's
  for (const result* each : {&here, &there}) {
    CHECK(each->from == 2);
    REQUIRE(each->losses.size() == 1);
    CHECK(each->losses[0] == expected.losses[2]);
    CHECK(each->norms[0] == expected.norms[2]);
    CHECK(each->weights == expected.weights);
  }
  std::filesystem::remove_all(device.path + "/step-00000003");
  on = whole;
  on.checkpoints = device.path;
  const result back = on_host<T>(ranks, on);  // from the device's
  CHECK(back.from == 2);
  CHECK(back.weights == expected.weights);
}

// A device's runs of `how`, of three ranks or fewer, with the bits of `resident`'s on the host.
template <class T>
void check_offloaded(const settings& resident, const settings& how, std::size_t number) {
  const int ranks = 1 + static_cast<int>(number % 3);
  const fakes::device_options orders[] = {{work_order::late}, {work_order::random, number}};
  CAPTURE(ranks);
  CAPTURE(static_cast<int>(how.stage));
  const result expected = on_host<T>(ranks, resident), got = on_device<T>(ranks, how, orders[number % 2]);
  REQUIRE(expected.losses.size() == steps);
  CHECK(got == expected);
  CHECK(got.weights == expected.weights);
  CHECK(got.as_planned);
}

}  // namespace

TEST_CASE(
    "a checkpoint of a device is that of the host, and a run that goes on from it has the bits of one that does") {
  const auto check = [](const settings& how, int ranks, const fakes::device_options& order) {
    check_resumed<float>(how, ranks, order, how);
  };
  check({.stage = zero_stage::none, .hidden = 60'000}, 1, {work_order::late});  // several chunks of a file
  check({.stage = zero_stage::optimizer_state}, 2, {work_order::random, 1});
  check({.stage = zero_stage::gradients}, 3, {work_order::late});
  check({.stage = zero_stage::parameters}, 2, {work_order::random, 2});
  const settings narrow{.stage = zero_stage::optimizer_state};
  check_resumed<belay::bf16>(narrow, 2, {work_order::late}, narrow);
}
TEST_CASE("a checkpoint of what lies in lower tiers of a device is that of the host, and goes on from it") {
  const settings resident{.stage = zero_stage::parameters, .hidden = 1500};
  for (const tier in : {tier::pinned, tier::file}) {
    settings lower = resident;
    offload(lower, offloaded_part::optimizer, in);
    offload(lower, offloaded_part::parameters, in == tier::file ? tier::host : tier::file);
    check_resumed<float>(resident, 2, {work_order::late}, lower);
  }
}

TEST_CASE("weights of a device are exported as the host's, and imported from them") {
  for (const zero_stage stage : {zero_stage::none, zero_stage::parameters}) {
    const directory host, device, back;
    const result expected = on_host<float>(2, {.stage = stage, .exports = host.path});
    static_cast<void>(on_device<float>(2, {.stage = stage, .exports = device.path}, {work_order::late}));
    CHECK(text_of(device / "model.safetensors") == text_of(host / "model.safetensors"));
    const result same = on_device<float>(2, {.stage = stage, .steps = 0, .imports = host.path, .exports = back.path},
                                         {work_order::random, 3});
    CHECK(same.weights == expected.weights);
    CHECK(text_of(back / "model.safetensors") == text_of(host / "model.safetensors"));
  }
}
TEST_CASE("a call of the device that fails while it is written or read is an error, or a checkpoint that is given up") {
  const directory written;
  static_cast<void>(on_host<float>(2, {.stage = zero_stage::parameters, .steps = 1, .checkpoints = written.path}));
  std::size_t calls = 0;
  for (std::size_t k = 0; k <= calls; k += 61) {  // which call of which rank, the threads decide
    CAPTURE(k);
    const directory copy;
    std::filesystem::copy(written.path, copy.path, std::filesystem::copy_options::recursive);
    fakes::device_api api({work_order::late, 0, k});
    result out;
    try {
      belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 512}),
                    trained<float>(out, {.stage = zero_stage::parameters, .steps = 2, .checkpoints = copy.path}));
      if (k == 0) calls = api.calls().size() * 4 / 5;  // the rest ends something, which throws nothing
      CHECK(out.losses.size() == 1);
    } catch (const std::exception& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
    CHECK(api.empty());
  }
}

TEST_CASE("a device updates state of a lower tier as its own, to the bit") {
  std::size_t number = 0;
  for (const tier in : {tier::pinned, tier::host, tier::file})
    for (int stage = 0; stage < 4; ++stage) {
      CAPTURE(name(in));
      settings how{.stage = static_cast<zero_stage>(stage), .hidden = 1500};  // five chunks
      const settings resident = how;
      offload(how, offloaded_part::optimizer, in);
      check_offloaded<float>(resident, how, number++);
      if (stage == 1) check_offloaded<belay::bf16>(resident, how, number);
    }
}
TEST_CASE("a device has shards and activations in a lower tier, and state between steps, as its own, to the bit") {
  std::size_t number = 0;
  for (const tier in : {tier::pinned, tier::host, tier::file})
    for (const offloaded_part what : {offloaded_part::gradients, offloaded_part::parameters,
                                      offloaded_part::activations, offloaded_part::between_steps})
      for (const zero_stage stage : {zero_stage::gradients, zero_stage::parameters}) {
        if (what == offloaded_part::parameters && stage != zero_stage::parameters) continue;
        CAPTURE(name(in));
        CAPTURE(static_cast<int>(what));
        settings how{.stage = stage, .hidden = 1500};
        const settings resident = how;
        offload(how, what, in);
        check_offloaded<float>(resident, how, number++);
        if (in == tier::pinned) check_offloaded<belay::bf16>(resident, how, number);
      }
}
TEST_CASE("an update of one's own through a frame has the bits of the host's, wherever shards lie") {
  std::size_t number = 0;
  for (const zero_stage stage : {zero_stage::none, zero_stage::gradients, zero_stage::parameters}) {
    const settings how{.stage = stage, .hidden = 1500, .how_updated = updated::by_own_kernel};
    check_offloaded<float>(how, how, number++);
    check_offloaded<belay::bf16>(how, how, number++);
  }
  for (const tier in : {tier::pinned, tier::host, tier::file})
    for (const offloaded_part what : {offloaded_part::gradients, offloaded_part::parameters}) {
      CAPTURE(name(in));
      settings how{.stage = zero_stage::parameters, .hidden = 1500, .how_updated = updated::by_own_kernel};
      const settings resident = how;
      offload(how, what, in);
      check_offloaded<float>(resident, how, number++);
      check_offloaded<belay::bf16>(resident, how, number++);
    }
  settings large{.stage = zero_stage::parameters, .hidden = 60'000, .how_updated = updated::by_own_kernel};
  const settings resident = large;
  offload(large, offloaded_part::parameters, tier::pinned);
  check_offloaded<float>(resident, large, 0);  // one rank has several chunks
}
TEST_CASE("with all in lower tiers a device is asked for nothing after the first step, and keeps as much") {
  const tier tiers[][4] = {{tier::pinned, tier::host, tier::pinned, tier::pinned},
                           {tier::host, tier::file, tier::file, tier::file},
                           {tier::file, tier::pinned, tier::file, tier::host},
                           {tier::device, tier::file, tier::pinned, tier::device}};
  for (std::size_t k = 0; k < std::size(tiers); ++k) {
    CAPTURE(k);
    settings how{.stage = zero_stage::parameters, .hidden = 1500};
    const result expected = on_host<float>(2, how);
    for (const offloaded_part what : {offloaded_part::optimizer, offloaded_part::gradients, offloaded_part::parameters,
                                      offloaded_part::activations})
      offload(how, what, tiers[k][static_cast<std::size_t>(what)]);
    fakes::device_api api({k % 2 == 0 ? work_order::late : work_order::random, k});
    std::vector<std::size_t> ended;
    result out;
    out.step_ended = [&] { ended.push_back(api.calls_so_far()); };
    belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 512}), trained<float>(out, how));
    CHECK(api.empty());
    CHECK(out == expected);
    CHECK(out.weights == expected.weights);
    REQUIRE(ended.size() == steps);
    for (const char* call : {"allocate", "register_host", "make_stream", "make_event"})
      CHECK(std::count(api.calls().begin() + static_cast<std::ptrdiff_t>(ended[0]),
                       api.calls().begin() + static_cast<std::ptrdiff_t>(ended[2]), call) == 0);
    CHECK(out.live[2] == out.live[1]);
  }
}
TEST_CASE("a call of the device that fails while tiers stream is an error, and nothing is left") {
  settings how{.stage = zero_stage::parameters, .steps = 2, .hidden = 1500};
  offload(how, offloaded_part::optimizer, tier::file);
  offload(how, offloaded_part::gradients, tier::pinned);
  offload(how, offloaded_part::parameters, tier::host);
  offload(how, offloaded_part::activations, tier::pinned);
  offload(how, offloaded_part::between_steps, tier::pinned);
  std::size_t calls = 0;
  for (std::size_t k = 0; k <= calls; k += 97) {
    CAPTURE(k);
    fakes::device_api api({work_order::late, 0, k});
    result out;
    try {
      belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 512}), trained<float>(out, how));
      if (k == 0) calls = api.calls().size() * 4 / 5;
    } catch (const std::exception& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
    CHECK(api.empty());
  }
}
