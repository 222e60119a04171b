// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples on ranks that have a device each and communicate over NCCL, over a fake of both: it has the
// bits that it has over a world of the host, in every order of the devices' streams. A call of NCCL or of a device that
// fails is told by a typed error, everything is freed, and nothing hangs.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/failing_nccl.hpp"
#include "unit/train/support/experts_trainer.hpp"
#include "unit/train/support/failed_launch.hpp"

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

// Two ranks that divide the experts; rank 1 has the failure of `how`, or the device the call that its options say.
failed_launch::thrown train_with(fakes::one_failure& how, std::uint64_t device_fails_at = 0,
                                 std::chrono::duration<double> timeout = std::chrono::seconds(60),
                                 failed_launch::device_calls* made = nullptr) {
  fakes::device_api api({.order = work_order::late, .fail_at = device_fails_at, .devices = 2});
  fakes::nccl_fabric fabric(api);
  result out;
  std::size_t trained = 0;
  out.step_ended = [&] { trained = api.calls_so_far(); };
  const auto got = failed_launch::of([&] {
    belay::launch(
        belay::nccl::world(api, fakes::failing_nccl(fabric, how), belay::host::world(2, {.timeout = timeout}), options),
        body<float>(out, {.shape = {.expert = 2}}));
  });
  CHECK(fabric.refusals().empty());
  CHECK(fabric.empty());
  CHECK(api.empty());
  if (made != nullptr) *made = {api.calls(), trained, out.losses};
  return got;
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

TEST_CASE("a call of NCCL that fails while divided experts are trained, at once, later or never ending, is told") {
  fakes::one_failure none;
  CHECK(train_with(none).what.empty());
  const std::vector<std::string> names = none.names;
  CHECK(std::count(names.begin(), names.end(), "group_end") > 20);
  failed_launch::sample chosen(2, 67);
  for (std::uint64_t k = 1; k <= names.size(); ++k) {
    const std::string& name = names[k - 1];
    if (!chosen.has(name, k)) continue;
    CAPTURE(name);
    CAPTURE(k);
    using failing_way = fakes::nccl_injection::failing_way;
    fakes::one_failure at_once{.what = {k, failing_way::fails}};
    failed_launch::check(train_with(at_once), 1, name);
    if (!fakes::has_peers(name)) continue;
    fakes::one_failure later{.what = {k, failing_way::asynchronous}};
    const failed_launch::thrown found = train_with(later);
    CHECK(found.rank == 1);
    CHECK((found.has("rank 1: ") && found.has("injected")));
    fakes::one_failure never{.what = {k, failing_way::silent}};
    const failed_launch::thrown late = train_with(never, 0, std::chrono::milliseconds(200));
    CHECK(late.kind == belay::error_kind::communication);
    CHECK(late.has("rank "));
  }
}
TEST_CASE("a call of a device that fails while divided experts are trained over NCCL is told") {
  fakes::one_failure none;
  failed_launch::device_calls usual;
  static_cast<void>(train_with(none, 0, std::chrono::seconds(60), &usual));
  failed_launch::sample chosen(1, 601);
  for (std::uint64_t k = 1; k <= usual.names.size(); ++k) {
    if (!chosen.has(usual.names[k - 1], k)) continue;
    CAPTURE(k);
    fakes::one_failure still;
    failed_launch::device_calls made;  // which call is the k-th, the threads decide
    const failed_launch::thrown got = train_with(still, k, std::chrono::seconds(60), &made);
    failed_launch::check_device(got, made, k, usual);
  }
}
