// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples, whose experts are divided among ranks that share a device, under `launch`: it has the bits
// that it has over a world of the host, also where a step must come again with more room.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "unit/train/support/experts_trainer.hpp"
#include "unit/train/support/failed_launch.hpp"

using namespace experts_trainer;

namespace {

template <class T>
result on_device(int ranks, const settings& how_trained, const fakes::device_options& how,
                 failed_launch::device_calls* made = nullptr) {
  fakes::device_api api(how);
  result out;
  std::size_t trained = 0;
  out.step_ended = [&] { trained = api.calls_so_far(); };
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 1 << 12}),
                  body<T>(out, how_trained));
  } catch (...) {
    CHECK(api.empty());
    if (made != nullptr) *made = {api.calls(), trained, out.losses};
    throw;
  }
  CHECK(api.empty());
  if (made != nullptr) *made = {api.calls(), trained, out.losses};
  return out;
}

template <class T>
void check(int ranks, belay::axes shape) {
  using fakes::work_order;
  const settings trains{.shape = shape};
  const result expected = on_host<T>(ranks, trains);
  REQUIRE(expected.losses.size() == steps);
  CHECK(expected.losses[2] < expected.losses[0]);
  CHECK(expected.room > 17);  // a step came again
  CHECK(expected.as_planned);
  for (const fakes::device_options& how :
       {fakes::device_options{work_order::eager}, {work_order::late}, {work_order::random, 1}, {work_order::random, 2}})
    CHECK(on_device<T>(ranks, trains, how) == expected);
}

}  // namespace

TEST_CASE("experts on two ranks of a device have the bits of the host") { check<float>(2, {.expert = 2}); }
TEST_CASE("experts on two ranks of a device have the bits of the host, beside replicas and in bf16") {
  check<belay::bf16>(4, {.data = 2, .expert = 2});
}
TEST_CASE("a call of the device that fails while experts are trained is what a launch throws, and nothing is left") {
  failed_launch::device_calls usual;
  const settings trains{.shape = {.expert = 2}};
  static_cast<void>(on_device<float>(2, trains, {fakes::work_order::late}, &usual));
  failed_launch::sample chosen(1, 601);
  for (std::uint64_t k = 1; k <= usual.names.size(); ++k) {
    if (!chosen.has(usual.names[k - 1], k)) continue;
    CAPTURE(k);
    failed_launch::device_calls made;  // which call is the k-th, the threads decide
    const auto got = failed_launch::of([&] {
      static_cast<void>(on_device<float>(2, trains, {fakes::work_order::late, 0, k}, &made));
    });
    failed_launch::check_device(got, made, k, usual);
  }
}
