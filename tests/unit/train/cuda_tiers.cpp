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
using belay::zero_stage;
using fakes::work_order;
using train_bench::directory;

namespace {

template <class T>
result on_host(int ranks, const settings& how) {
  result out;
  belay::launch<belay::host_kit<belay::kernel::blocked_products>>(belay::host::world(ranks), trained<T>(out, how));
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

template <class T>
void check_resumed(zero_stage stage, int ranks, const fakes::device_options& order) {
  CAPTURE(static_cast<int>(stage));
  CAPTURE(ranks);
  const settings whole{.stage = stage};
  const result expected = on_host<T>(ranks, whole);
  REQUIRE(expected.losses.size() == steps);
  const directory host, device;
  settings on{.stage = stage, .steps = 2, .checkpoints = host.path};
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
  on.checkpoints = device.path;
  const result back = on_host<T>(ranks, on);  // from the device's
  CHECK(back.from == 2);
  CHECK(back.weights == expected.weights);
}

}  // namespace

TEST_CASE(
    "a checkpoint of a device is that of the host, and a run that goes on from it has the bits of one that does") {
  check_resumed<float>(zero_stage::none, 1, {work_order::late});
  check_resumed<float>(zero_stage::optimizer_state, 2, {work_order::random, 1});
  check_resumed<float>(zero_stage::gradients, 3, {work_order::late});
  check_resumed<float>(zero_stage::parameters, 2, {work_order::random, 2});
  check_resumed<belay::bf16>(zero_stage::optimizer_state, 2, {work_order::late});
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
