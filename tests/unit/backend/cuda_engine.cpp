// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A small network trained by an engine over a device of the host, whose streams are late on purpose, and by the host;
// and the copies by which the host sees the engine's memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/device/host_access.hpp"
#include "belay/step.hpp"
#include "unit/backend/bent_network.hpp"
#include "unit/backend/fake_cuda.hpp"

using namespace bent_network;
using namespace fake_cuda;
using fakes::work_order;

namespace {

std::vector<double> on_host() {
  belay::tier_meter meter;
  belay::host_engine engine(belay::host_pages(1 << 14), meter);
  const belay::host_pages memory(1 << 13), staged(1 << 13);
  return train(engine, memory, staged, forgets::nothing, [] {});
}

using device_engine = belay::engine<memory_type, kit_type>;

template <class Ended>
std::vector<double> on_device(api_type& api, forgets what, belay::freed_memory freed, Ended step_ended) {
  const belay::cuda::device<api_type> gpu(api);
  const memory_type memory(gpu, 1 << 13);
  const host_side staged(gpu, 1 << 13);
  belay::tier_meter meter;
  device_engine engine(memory_type(gpu, 1 << 14), meter, kit_type(gpu), freed);
  return train(engine, memory, staged, what, step_ended);
}
std::vector<double> on_device(const fakes::device_options& how, forgets what) {
  api_type api(how);
  return on_device(api, what, belay::freed_memory::poisoned, [] {});
}

}  // namespace

TEST_CASE("an engine over a device trains to the host's bits in every order, and a missing event is seen") {
  const std::vector<double> expected = on_host();
  CHECK(expected[0] > expected[steps - 1]);
  for (const forgets what : {forgets::batch, forgets::result}) {
    CHECK(on_device({work_order::eager}, what) == expected);
    CHECK(on_device({work_order::late}, what) != expected);
  }
  std::size_t without_batch = 0;
  for (const fakes::device_options& how : orders()) {
    CHECK(on_device(how, forgets::nothing) == expected);
    without_batch += on_device(how, forgets::batch) != expected;
  }
  CHECK(without_batch > 1);
}

TEST_CASE("steps after the first ask a device for nothing") {
  api_type api({work_order::late});
  std::vector<std::size_t> ended;
  static_cast<void>(
      on_device(api, forgets::nothing, belay::freed_memory::as_it_was, [&] { ended.push_back(api.calls().size()); }));
  CHECK(api.empty());
  for (const char* call : {"allocate", "register_host", "make_stream", "make_event"})
    CHECK(std::count(api.calls().begin() + static_cast<std::ptrdiff_t>(ended.front()),
                     api.calls().begin() + static_cast<std::ptrdiff_t>(ended.back()), call) == 0);
}

TEST_CASE("a step in which a call of the device fails is an error that names it, and nothing is left") {
  api_type all({work_order::late});
  std::size_t end = 0;
  static_cast<void>(
      on_device(all, forgets::nothing, belay::freed_memory::as_it_was, [&] { end = all.calls().size(); }));
  const std::vector<std::string> calls(all.calls().begin(), all.calls().begin() + static_cast<std::ptrdiff_t>(end));
  for (const std::string& name : std::set<std::string>(calls.begin(), calls.end())) {
    CAPTURE(name);
    std::size_t k = calls.size();  // the last such call of the steps
    while (calls[k - 1] != name) --k;
    api_type api({work_order::late, 0, k});
    try {
      static_cast<void>(on_device(api, forgets::nothing, belay::freed_memory::as_it_was, [] {}));
      FAIL_CHECK("nothing failed");
    } catch (const belay::backend_error& problem) {
      CHECK(problem.about().call == name);
    }
    CHECK(api.empty());
  }
}

TEST_CASE("copies of any size pass through two halves: the device copies one while the host has the other") {
  constexpr std::size_t staged = 64, half = staged / 2;
  for (const fakes::device_options& options : orders()) {
    bench on(options);
    const belay::device_access<stream_type, host_side> access(stream_type(on.gpu, belay::stream_kind::copy),
                                                              host_side(on.gpu, staged));
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, half - 1, half, half + 1, 5 * half, 6 * half + 7}) {
      std::vector<unsigned char> there(bytes), back(bytes);
      for (std::size_t i = 0; i < bytes; ++i) there[i] = static_cast<unsigned char>(i * 7 + bytes);
      access.place(on.on_device<std::byte>(0), there.data(), bytes, belay::where::current());
      access.fetch(back.data(), on.on_device<std::byte>(0), bytes, belay::where::current());
      CHECK(back == there);
    }
  }

  // Without a wait before the second copy.
  bench on({fakes::work_order::late});
  belay::device_access<stream_type, host_side> access(stream_type(on.gpu, belay::stream_kind::copy),
                                                      host_side(on.gpu, staged));
  std::vector<std::byte> back(4 * half);
  const auto order_of = [&](const auto& call) {
    const std::size_t before = on.api.calls().size();
    call();
    std::string order;
    for (std::size_t i = before; i < on.api.calls().size(); ++i)
      if (on.api.calls()[i] == "copy" || on.api.calls()[i] == "await") order += on.api.calls()[i] + ' ';
    return order;
  };
  CHECK(order_of([&] { access.fetch(back.data(), on.memory.data(), 4 * half, belay::where::current()); }) ==
        "copy copy await copy await copy await await ");
  CHECK(order_of([&] { access.place(on.memory.data(), back.data(), 4 * half, belay::where::current()); }) ==
        "copy copy await copy await copy await ");
}
