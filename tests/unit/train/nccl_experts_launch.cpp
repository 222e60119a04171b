// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples on ranks that have a device each and communicate over NCCL, over a fake of both: it has the
// bits that it has over a world of the host, in every order of the devices' streams.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"
#include "unit/train/support/experts_trainer.hpp"

using namespace experts_trainer;
using fakes::work_order;

namespace {

constexpr belay::nccl::world_options options{
    .ranks = {.workspace_bytes = 1 << 14, .watch_period = std::chrono::milliseconds(5)},
    .parent_bytes = 1 << 16,
    .group_bytes = 1 << 12};

template <class T, int Stage>
result over_nccl(int ranks, const settings& trains, fakes::device_options how,
                 std::vector<std::string>* calls_of_last_steps = nullptr) {
  how.devices = ranks;
  fakes::device_api api(how);
  fakes::nccl_fabric fabric(api);
  result out;
  std::vector<std::size_t> ended;
  out.step_ended = [&] { ended.push_back(api.calls_so_far()); };
  belay::launch(belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(ranks), options),
                body<T, Stage>(out, trains));
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  REQUIRE(ended.size() == steps);
  const auto at = [&](std::size_t step) { return api.calls().begin() + static_cast<std::ptrdiff_t>(ended[step]); };
  if (calls_of_last_steps != nullptr) calls_of_last_steps->assign(at(0), at(2));
  return out;
}
template <class T, int Stage>
void check(int ranks, const settings& trains) {
  CAPTURE(ranks);
  const result expected = on_host<T, Stage>(ranks, trains);
  REQUIRE(expected.losses.size() == steps);
  CHECK(expected.losses[2] < expected.losses[0]);
  CHECK(expected.room > trains.capacity);  // a step came again
  for (const fakes::device_options& how : {fakes::device_options{work_order::late}, {work_order::random, 1}})
    CHECK(over_nccl<T, Stage>(ranks, trains, how) == expected);
}

}  // namespace

TEST_CASE("experts that each rank over NCCL has all of have the bits of the host") {
  check<float, 1>(2, {.shape = {.data = 2}});
}
TEST_CASE("experts that ranks over NCCL divide have the bits of the host, also where activations have left") {
  check<float, 1>(2, {.shape = {.expert = 2}});
  check<float, 1>(2, {.shape = {.expert = 2}, .activations = belay::tier::pinned});
  check<belay::bf16, 2>(3, {.shape = {.expert = 3}, .experts = 6});
}
TEST_CASE("experts that ranks over NCCL divide have the bits of the host, beside replicas and in divided parameters") {
  check<float, 3>(4, {.shape = {.data = 2, .expert = 2}});
}
TEST_CASE("steps after the first that send rows to experts ask devices for nothing") {
  std::vector<std::string> calls;
  static_cast<void>(over_nccl<float, 1>(2, {.shape = {.expert = 2}}, {work_order::late}, &calls));
  CHECK(std::count(calls.begin(), calls.end(), "copy") > 0);
  for (const char* call : {"allocate", "register_host", "make_stream", "make_event"})
    CHECK(std::count(calls.begin(), calls.end(), call) == 0);
}
