// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the CUDA backend does where something fails: a call, a kernel, or the program that uses it.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>

#include "belay/backend/cuda.hpp"
#include "belay/device.hpp"
#include "belay/kernel.hpp"
#include "unit/backend/fake_cuda.hpp"
#include "unit/backend/forked.hpp"

using namespace fake_cuda;
using belay::stream_kind;
using fakes::work_order;

namespace {

volatile const float* touched_address;

void tell_fault(int, siginfo_t* about, void*) { ::_exit(about->si_addr == touched_address ? 7 : 8); }

// How a child ends that reads an address: 7 is a fault at that address, 0 none.
int end_of_reading(const float* address) {
  return reaped(forked([&] {
    touched_address = address;
    struct sigaction handler {};
    handler.sa_sigaction = tell_fault;
    handler.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &handler, nullptr);
    return *touched_address > 1e30F ? 1 : 0;
  }));
}

}  // namespace

TEST_CASE("a line of the host that reads memory of the device faults there") {
  bench with;
  with.kit.each(8, belay::kernel::fill<float>{with.on_device<float>(0), 1});
  with.kit.stream().synchronize();
  CHECK(end_of_reading(with.on_device<float>(4)) == 7);
  CHECK(end_of_reading(with.on_host<float>(4)) == 0);
}

TEST_CASE("the host's side of a copy is registered memory") {
  bench with;
  std::array<float, 4> pageable{};
  try {
    with.copies.copy(pageable.data(), with.memory.data(), 16);
    FAIL("copied");
  } catch (const belay::backend_error& problem) {
    CHECK(problem.kind() == belay::error_kind::backend);
    CHECK(problem.about().call == "copy");
    CHECK(problem.about().bytes == 16);
    CHECK(std::string(problem.what()).find("cuda_faults.cpp") != std::string::npos);
    CHECK(std::string(problem.what()).find("rank 0: copy of 16 bytes: memory of the host that is not registered") !=
          std::string::npos);
  }
}

namespace {

struct throwing {
  BELAY_HD void operator()(std::size_t) const { throw std::runtime_error("a kernel failed"); }
};

// Work that ran for longer than no time at all.
struct impatient final : belay::stream_watch {
  [[nodiscard]] std::chrono::steady_clock::duration limit() const noexcept override { return {}; }
  [[nodiscard]] bool failed() const noexcept override { return false; }
  [[noreturn]] void raise(belay::where at) const override { throw belay::error("the world has failed", at); }
  [[noreturn]] void give_up(const std::string& what, belay::where at) const override { throw belay::error(what, at); }
  void fail(belay::error_kind, const std::string&, belay::where) const override {}
  [[nodiscard]] int rank() const noexcept override { return 3; }
};

}  // namespace

TEST_CASE("a kernel that fails is told by the next wait, and by events that outlive the stream") {
  api_type api({work_order::late});
  const belay::cuda::device<api_type> gpu(api, 2);
  belay::stream_event mark;
  {
    kit_type kit(gpu);
    kit.each(1, throwing{});
    mark = kit.stream().record();
    CHECK_THROWS_WITH_AS(kit.stream().synchronize(), doctest::Contains("rank 2: await: a kernel failed"),
                         belay::backend_error);
    CHECK(mark.ready());
    CHECK_THROWS_AS(kit.each(1, belay::kernel::fill<float>{nullptr, 0}), belay::backend_error);
  }
  CHECK(api.empty());
  CHECK(mark.ready());
  CHECK_THROWS_WITH_AS(mark.synchronize(), doctest::Contains("a kernel failed"), belay::backend_error);
}

TEST_CASE("a wait for a stream whose work does not end gives up when its watch says so") {
  api_type api({work_order::late});
  const belay::cuda::device<api_type> gpu(api, 3);
  stream_type stream(gpu, stream_kind::compute, std::make_shared<impatient>());
  stream.run([] {});
  const belay::stream_event end = stream.record();
  api.hold();
  CHECK(!end.synchronize_until(std::chrono::steady_clock::now()));
  CHECK_THROWS_WITH(end.synchronize(), doctest::Contains("rank 3 waits for its compute stream of the device"));

  api.go_on();
  stream.synchronize();
  CHECK(end.ready());
}

namespace {

// A rank's use of a device from its beginning to its end. Says how many calls there were before the end.
std::size_t whole_life(api_type& api) {
  const belay::cuda::device<api_type> gpu(api, 5);
  belay::tier_meter meter;
  belay::arena<memory_type> arena(belay::tier::device, memory_type(gpu, 1 << 12), 16, meter);
  const host_side batch(gpu, 256);
  kit_type kit(gpu);
  stream_type copies(gpu, stream_kind::copy);
  belay::lease_chain chain;
  float* const x = arena.lease<float>(belay::extents<2>{8, 8}, chain).data();
  float* const y = arena.lease<float>(belay::extents<2>{8, 8}, chain).data();
  const auto workspace = arena.lease_bytes(512, chain);
  const auto ends = reinterpret_cast<const std::int32_t*>(arena.lease_bytes(4, chain));
  kit.use_workspace({workspace, 512});
  copies.copy(x, batch.data(), 256);
  kit.stream().wait(copies.record());
  kit.teams(8, belay::kernel::causal_softmax_rows<float>{x, x, 8});
  kit.product(belay::product_call<float>{{y, 8, 8, 8}, {x, 8, 8, 8}, {x, 8, 8, 8}});
  kit.grouped(belay::grouped_rows_call<float>{{y, 8, 8, 8}, {x, 8, 8, 8}, {x, 1, 8, 8}, {ends, {1}}});
  kit.each(64, belay::kernel::scale<float>{2, y});
  copies.wait(kit.stream().record());
  copies.copy(batch.data(), y, 256);
  copies.synchronize();
  return api.calls().size();
}

}  // namespace

TEST_CASE("any call of a device that fails is an error that names it, and nothing is left") {
  api_type all({work_order::late});
  static_cast<void>(whole_life(all));
  CHECK(all.empty());
  std::set<std::string> told;
  for (std::size_t k = 1; k <= all.calls().size(); ++k) {
    if (all.calls()[k - 1].find("_event") != std::string::npos && k % 50 != 0) continue;  // there are hundreds
    CAPTURE(k);
    for (const work_order order : {work_order::late, work_order::random}) {
      api_type api({order, k, k});
      try {
        const std::size_t before_its_end = whole_life(api);
        CHECK(before_its_end < k);  // what ends something cannot throw
      } catch (const belay::backend_error& problem) {
        const belay::backend_error::details& about = problem.about();
        told.insert(about.call);
        CHECK(about.call == api.calls()[k - 1]);
        CHECK(about.rank == 5);
        CHECK(about.message == "injected");
        CHECK((about.bytes > 0) ==
              (std::set<std::string>{"allocate", "register_host", "copy", "product", "grouped", "use_workspace"}.count(
                   about.call) > 0));
      }
      CHECK(api.empty());
    }
  }
  CHECK(told == std::set<std::string>{"allocate", "await", "copy", "each", "grouped", "make_event", "make_stream",
                                      "open", "product", "query", "record", "register_host", "teams", "use_workspace",
                                      "wait"});
}
