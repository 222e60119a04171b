// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A trainer whose world is a device that its ranks share, over a device of the host: it has the bits that it has over
// a world of the host, in every order of the device's streams.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/staged.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "on_a_gpu/trainer.hpp"
#include "unit/train/support/device_trainer.hpp"

using namespace device_trainer;

namespace {

template <int Stage, class T>
result on_host(int ranks) {
  result out;
  belay::launch<belay::host_kit<>>(belay::host::world(ranks), body<Stage, T>(out));
  return out;
}
template <int Stage, class T>
result on_device(int ranks, const fakes::device_options& how) {
  fakes::device_api api(how);
  result out;
  belay::launch(belay::cuda::world(api, belay::host::world(ranks), {.slot_bytes = 512}), body<Stage, T>(out));
  CHECK(api.empty());
  return out;
}

template <int Stage, class T = float>
void check_stage() {
  using fakes::work_order;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const result expected = on_host<Stage, T>(ranks);
    REQUIRE(expected.losses.size() == steps);
    CHECK(expected.losses[2] < expected.losses[0]);
    for (const fakes::device_options& how : {fakes::device_options{work_order::eager},
                                             {work_order::late},
                                             {work_order::random, 1},
                                             {work_order::random, 2}}) {
      const result got = on_device<Stage, T>(ranks, how);
      CHECK(got == expected);
      CHECK(got.gathers_alone);  // from its peers' memory
    }
  }
}

template <class F>
inline constexpr bool is_update = false;
template <class... Types>
inline constexpr bool is_update<belay::kernel::adamw<Types...>> = true;
template <class... Types>
inline constexpr bool is_update<belay::kernel::adamw_of_ranges<Types...>> = true;

// Products of a stream take memory of the device, as a handle of cuBLAS does. Counts the kernels of updates.
class costly_api : public fakes::device_api {
 public:
  using device_api::device_api;
  status_type make_stream(stream_type& made, belay::stream_kind kind) {
    const status_type got = device_api::make_stream(made, kind);
    if (!succeeded(got) || kind != belay::stream_kind::compute) return got;
    std::byte* memory = nullptr;
    const status_type room = allocate(memory, taken);
    const std::lock_guard lock(mutex_);
    handles_[made] = memory;
    return room;
  }
  status_type destroy_stream(stream_type which) {
    std::byte* memory = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = handles_.find(which); found != handles_.end()) {
        memory = found->second;
        handles_.erase(found);
      }
    }
    if (memory != nullptr) static_cast<void>(release(memory));
    return device_api::destroy_stream(which);
  }
  template <class F>
  status_type each(stream_type on, std::size_t count, const F& f) {
    if (is_update<F>) ++updates;
    return device_api::each(on, count, f);
  }
  template <class G>
  status_type teams(stream_type on, std::size_t count, const G& g) {
    if (is_update<G>) ++updates;
    return device_api::teams(on, count, g);
  }
  static constexpr std::size_t taken = 30'000;
  std::atomic<std::size_t> updates = 0;

 private:
  std::mutex mutex_;
  std::map<stream_type, std::byte*> handles_;
};

}  // namespace

TEST_CASE("an update on a device is a kernel for each bucket, or for each chunk of state that comes to it") {
  const auto updates = [](const belay::optimizer_memory& memory) {
    costly_api api;
    result out;
    belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}),
                  trained<float>(out, {.hidden = 5'000, .optimizer = memory}));
    REQUIRE(out.losses.size() == steps);
    CHECK(out.as_planned);
    return api.updates.load();
  };
  CHECK(updates({}) == 2 * steps);  // of two parameters, each a bucket
  CHECK(updates({.state = belay::tier::pinned}) == steps);
  CHECK(updates({.state = belay::tier::pinned, .chunk = 4 * 4096}) == 4 * steps);  // of 60,000 elements
}

TEST_CASE("what all ranks of a device lease is held against what it has left") {
  fakes::device_api api({.memory = (3 << 16) + 20'000});
  result out;
  std::string refused;
  try {
    belay::launch(belay::cuda::world(api, belay::host::world(3), {.slot_bytes = 512, .groups = 2}),
                  body<0, float>(out));
  } catch (const belay::plan_refused& problem) {
    refused = problem.what();
  }
  CHECK(refused.find("the 3 ranks of this device need") != std::string::npos);
  CHECK(refused.find("workspace of products") != std::string::npos);
  CHECK(out.losses.empty());
  CHECK(api.empty());
}
TEST_CASE("a trainer over a device has the bits of the host: whole state on each rank") { check_stage<0>(); }
TEST_CASE("a trainer over a device has the bits of the host: divided optimizer state") { check_stage<1>(); }
TEST_CASE("a trainer over a device has the bits of the host: divided gradients") { check_stage<2>(); }
TEST_CASE("a trainer over a device has the bits of the host: divided parameters") { check_stage<3>(); }
TEST_CASE("a trainer over a device has the bits of the host: gradients that are rounded for the wire") {
  check_stage<1, belay::bf16>();
}
TEST_CASE("steps after the first ask a device for nothing") {
  fakes::device_api api({fakes::work_order::late});
  std::vector<std::size_t> ended;
  result out;
  out.step_ended = [&] { ended.push_back(api.calls_so_far()); };
  belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 512}), body<3, float>(out));
  REQUIRE(ended.size() == steps);
  for (const char* call : {"allocate", "register_host", "make_stream", "make_event"})
    CHECK(std::count(api.calls().begin() + static_cast<std::ptrdiff_t>(ended[0]),
                     api.calls().begin() + static_cast<std::ptrdiff_t>(ended[2]), call) == 0);
}
TEST_CASE("a call of the device that fails in a rank is what a launch throws, and nothing is left") {
  std::size_t calls = 0;
  for (std::size_t k = 0; k <= calls; k += 89) {  // which call of which rank, the threads decide
    CAPTURE(k);
    fakes::device_api api({fakes::work_order::late, 0, k});
    result out;
    try {
      belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 512}), body<3, float>(out));
      if (k == 0) calls = api.calls().size() * 4 / 5;  // the rest ends something, which throws nothing
    } catch (const std::exception& problem) {
      CHECK(std::string(problem.what()).find("injected") != std::string::npos);
    }
    CHECK(api.empty());
  }
}
TEST_CASE("what is staged for a device is there for its kernels, and what they make of it for the host") {
  for (const fakes::device_options& how :
       {fakes::device_options{fakes::work_order::eager}, {fakes::work_order::late}, {fakes::work_order::random, 3}}) {
    fakes::device_api api(how);
    std::vector<double> sums;
    belay::launch(belay::cuda::world(api, belay::host::world(1), {.slot_bytes = 512}), [&](auto&, auto& run) {
      using run_type = std::remove_reference_t<decltype(run)>;
      belay::staged<double, run_type> number(run, 1, "numbers"), total(run, 1, "numbers");
      for (double k : {1.0, 2.0, 3.0}) {  // the host's side is written again when the copy before it is over
        number.write([&](std::span<double> all) { all[0] = k; });
        run.engine().kit().each(1, belay::kernel::axpy<double>{1.0, number.data(), total.data()});
      }
      total.fetch();
      if (!run.rehearsing()) sums = {number.values()[0], total.values()[0]};
    });
    CHECK(sums == std::vector<double>{3, 6});
    CHECK(api.empty());
  }
}

TEST_CASE("what libraries take for each rank's kit is measured, told, and kept free for it") {
  const auto train_in = [](std::size_t memory, std::vector<belay::device_usage>& told) {
    costly_api api({.order = fakes::work_order::late, .memory = memory});
    belay::launch_options options;
    options.measured = [&](std::span<const belay::device_usage> usage) { told.assign(usage.begin(), usage.end()); };
    result out;
    belay::launch(belay::cuda::world(api, belay::host::world(2), {.slot_bytes = 512, .groups = 2}), body<0, float>(out),
                  options);
    CHECK(out.losses.size() == steps);
  };
  std::vector<belay::device_usage> told;
  train_in(1 << 20, told);
  REQUIRE(told.size() == 2);
  for (const belay::device_usage& each : told)
    CHECK(each == belay::device_usage{1 << 20, 0, 2048 + (1 << 16), costly_api::taken, 2048 + (1 << 16)});
  // The least that serves, but for what the kits take.
  std::size_t needed = 1 << 20;
  try {
    train_in(2 * ((1 << 16) + 2048), told);
  } catch (const belay::plan_refused& problem) {
    needed = problem.shortage().needed_bytes;
  }
  CHECK(needed < (1 << 20));
  const std::size_t others = 2 * ((1 << 16) + 2048) + 16'384;  // and findings, which no plan has
  CHECK_THROWS_AS(train_in(others + needed + costly_api::taken, told), belay::plan_refused);
  train_in(others + needed + 2 * costly_api::taken, told);
}

TEST_CASE("the trainer of an example has the same losses where one line names a device instead of the host") {
  const auto losses_over = [](auto&& world) {
    std::vector<double> out;
    belay::launch(world, [&](auto& rank, auto& run) {
      on_a_gpu::train(rank, run, 20, [&](std::size_t, double mean) { out.push_back(mean); });
    });
    return out;
  };
  const std::vector<double> expected = losses_over(belay::host::world(2));
  REQUIRE(expected.size() == 20);
  CHECK(expected[19] < expected[0]);
  for (const fakes::device_options& how :
       {fakes::device_options{fakes::work_order::late}, {fakes::work_order::random, 3}}) {
    fakes::device_api api(how);
    const std::vector<double> got = losses_over(belay::cuda::world(api, belay::host::world(2)));
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5));
  }
}
