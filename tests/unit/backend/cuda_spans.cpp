// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Spans of what a device runs: their times are of its timed events, in every order of the device's streams.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/timed_spans.hpp"
#include "belay/backend/host.hpp"
#include "belay/device/copy_stream.hpp"
#include "belay/step.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "unit/backend/fake_cuda.hpp"
#include "unit/backend/stream_trials.hpp"

using namespace fake_cuda;
using belay::span_kind;
using belay::span_lane;
using belay::stream_kind;

namespace {

struct plus_one {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] += 1; }
};

}  // namespace

TEST_CASE("spans of a device's streams have the times of its events, nest, and are over when the log is taken away") {
  static_assert(belay::traced_stream<stream_type> && belay::span_timing_stream<stream_type>);
  for (const fakes::device_options& how : orders()) {
    bench here(how);
    std::vector<belay::traced_span> room(20);
    belay::span_log log(room);
    stream_type& compute = here.kit.stream();
    belay::copy_stream<stream_type> copies(compute.another_stream(stream_kind::copy));
    float* const x = here.on_device<float>(0);
    compute.each(4, plus_one{x});  // before the traced step
    compute.trace_into(&log);
    copies.stream().trace_into(&log);
    const std::int64_t begun = belay::span_log::now();
    {
      const belay::queued_span layer(compute,
                                     log.add({.name = "layer", .kind = span_kind::layer, .lane = span_lane::compute}));
      compute.each(4, plus_one{x});
      const belay::queued_span part(compute,
                                    log.add({.name = "part", .kind = span_kind::layer, .lane = span_lane::compute}));
      compute.each(4, plus_one{x});
    }
    copies.copy(here.pinned.data(), here.memory.data(), 64);
    compute.wait(copies.record());
    for (const belay::traced_span& each : log.spans()) CHECK_FALSE(each.over());
    compute.trace_into(nullptr);
    copies.stream().trace_into(nullptr);
    const auto spans = log.spans();
    REQUIRE(spans.size() >= 3);  // a wait for what is over already is none
    for (const belay::traced_span& each : spans) {
      INFO(std::string(each.name));
      CHECK(each.over());
      CHECK(each.end > each.begin);
      CHECK(each.begin < begun + 1'000'000'000);  // a tick of this device is a millisecond
    }
    CHECK(spans[0].begin < spans[1].begin);
    CHECK(spans[1].end < spans[0].end);
    CHECK(std::string(spans[2].name) == "copy");
    CHECK(spans[2].lane == span_lane::copy);
    CHECK(spans[2].bytes == 64);
    CHECK(std::string(spans[2].file).ends_with("cuda_spans.cpp"));
    if (how.order == fakes::work_order::late) {
      REQUIRE(spans.size() == 4);
      CHECK(std::string(spans[3].name) == "wait for copy");
      CHECK(spans[3].kind == span_kind::wait);
    }
    // Nothing more is traced, and more than there is room for has no times.
    copies.copy(here.pinned.data(), here.memory.data(), 64);
    CHECK(log.spans().size() == spans.size());
  }
}

TEST_CASE("a launch of a graph is one span, and what it was captured from is none") {
  bench here({fakes::work_order::late});
  std::vector<belay::traced_span> room(20);
  belay::span_log log(room);
  stream_type& compute = here.kit.stream();
  float* const x = here.on_device<float>(0);
  compute.trace_into(&log);
  belay::cuda::graph<api_type> graph = compute.capture([&] {
    const belay::queued_span layer(compute,
                                   log.add({.name = "layer", .kind = span_kind::layer, .lane = span_lane::compute}));
    compute.each(4, plus_one{x});
  });
  compute.launch(graph);
  compute.launch(graph);
  compute.trace_into(nullptr);
  REQUIRE(log.spans().size() == 3);
  CHECK_FALSE(log.spans()[0].begun());
  for (std::size_t i = 1; i < 3; ++i) {
    CHECK(std::string(log.spans()[i].name) == "graph");
    CHECK(log.spans()[i].over());
  }
  CHECK(log.spans()[1].end < log.spans()[2].begin);
}

TEST_CASE("a device that has no more events says so when a trace begins, and the stream works on") {
  const std::size_t made = bench().api.calls_so_far();
  bench here({.fail_at = made + 5});
  std::vector<belay::traced_span> room(4);
  belay::span_log log(room);
  stream_type& compute = here.kit.stream();
  CHECK_THROWS_WITH_AS(compute.trace_into(&log), doctest::Contains("make_timed_event"), belay::backend_error);
  compute.copy(here.pinned.data(), here.memory.data(), 64);
  compute.synchronize();
  CHECK(log.spans().empty());
}

TEST_CASE("what ranks of a device start is spans with the device's times, what they call with the host's") {
  for (const fakes::work_order order : {fakes::work_order::eager, fakes::work_order::late, fakes::work_order::random}) {
    fakes::device_api api({order});
    const belay::cuda::world world(api, belay::host::world(2), {.slot_bytes = 1024});
    world.run([](auto& rank) {
      const auto& all = rank.world();
      kit_type kit(rank.gpu(), rank.watch());
      const memory_type memory(rank.gpu(), 1024);
      const std::span<float> x(reinterpret_cast<float*>(memory.data()), 64), y(x.data() + 64, 64);
      std::vector<belay::traced_span> room(40);
      belay::span_log log(room);
      const auto step = [&] {
        kit.each(64, plus_one{x.data()});
        const int other = 1 - all.rank();
        const belay::p2p ring[] = {belay::p2p::send(other, std::span<const float>(x)), belay::p2p::receive(other, y)};
        belay::pending sent = all.start_exchange(ring, belay::after(kit.stream().record()));
        belay::pending summed = all.start_all_reduce(x, belay::sum);
        std::move(sent).then(kit.stream());
        std::move(summed).wait();
        all.all_reduce(y, belay::sum);
        kit.stream().synchronize();
      };
      step();  // before
      all.trace_into(&log);
      rank.control().trace_into(&log);
      step();
      all.trace_into(nullptr);
      rank.control().trace_into(nullptr);
      step();  // and after are no spans
      std::vector<std::string> started, called;
      std::size_t transfers = 0;
      for (const belay::traced_span& each : log.spans()) {
        const bool started_here = each.lane == span_lane::communication;
        if (each.kind == span_kind::send || each.kind == span_kind::receive) {
          CHECK(each.peer == static_cast<std::uint32_t>(1 - all.rank()));
          ++transfers;
        } else if (each.kind == span_kind::communication) {
          (started_here ? started : called).emplace_back(each.name);
          INFO(std::string(each.name));
          CHECK(each.over());
          CHECK(each.end > each.begin);
          CHECK(std::string(each.file).ends_with("cuda_spans.cpp"));
        }
      }
      CHECK(started == std::vector<std::string>{"exchange", "all_reduce"});  // each once: not of the host's world too
      CHECK(std::count(called.begin(), called.end(), "all_reduce") == 1);
      CHECK(transfers == 2);
    });
    CHECK(api.calls_so_far() > 0);
  }
}

TEST_CASE(
    "what a GPU is asked of its memory, its events and their times is so on the fake, and missed where it is not") {
  const auto forgotten = [] { return true; };
  for (const fakes::work_order order : {fakes::work_order::eager, fakes::work_order::late, fakes::work_order::random}) {
    fakes::device_api api({.order = order, .memory = 1 << 20});
    CHECK(stream_trials::running_out(api, forgotten) == "");
    CHECK(stream_trials::recorded_again(api, std::chrono::seconds(20)) == "");
    CHECK(stream_trials::timed(api, 1'000'000'000) == "");
    CHECK(api.empty());
  }
  fakes::device_api told_again({.memory = 1 << 20});
  CHECK(stream_trials::running_out(told_again, [] { return false; }).find("told by later calls") != std::string::npos);
  std::size_t missed = 0;
  for (std::uint64_t wait = 1; wait <= 4; ++wait) {
    fakes::forgetful_api forgets({.order = fakes::work_order::late}, fakes::forgets::one, wait);
    missed += stream_trials::recorded_again(forgets, std::chrono::seconds(20)).empty() ? 0 : 1;
  }
  CHECK(missed > 1);
}
