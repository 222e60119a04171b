// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The model of the examples, whose experts are divided among ranks that share a device, under `launch`: it has the bits
// that it has over a world of the host, also where a step must come again with more room.
#include <doctest/doctest.h>

#include <cstddef>
#include <exception>
#include <string>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "unit/train/support/experts_trainer.hpp"

using namespace experts_trainer;

namespace {

template <class T>
result on_device(int ranks, const settings& how_trained, const fakes::device_options& how,
                 std::size_t* calls = nullptr) {
  fakes::device_api api(how);
  result out;
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 1 << 12}),
                  body<T>(out, how_trained));
  } catch (...) {
    CHECK(api.empty());
    throw;
  }
  CHECK(api.empty());
  if (calls != nullptr) *calls = api.calls().size();
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
  std::size_t calls = 0;
  static_cast<void>(on_device<float>(2, {.shape = {.expert = 2}}, {fakes::work_order::late}, &calls));
  for (std::size_t k = 1; k <= calls * 4 / 5; k += calls / 12) {  // the rest ends something, which throws nothing
    CAPTURE(k);
    try {
      static_cast<void>(on_device<float>(2, {.shape = {.expert = 2}}, {fakes::work_order::late, 0, k}));
    } catch (const std::exception& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
  }
}
