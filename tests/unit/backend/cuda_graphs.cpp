// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a stream of a device captures, over a device of the host: a launch is all of it, in every order of the device's
// streams, and what CUDA forbids in a capture is an error with its name.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/kernel/elementwise.hpp"
#include "unit/backend/fake_cuda.hpp"

using namespace fake_cuda;
using belay::stream_kind;
using fakes::work_order;

namespace {

struct doubled {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] *= 2; }
};
struct plus_one {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] += 1; }
};

struct grown_in_turn {
  float* x;
  void operator()(const auto& calls) const { calls.each(1, plus_one{x}); }
};

struct setting {
  explicit setting(const fakes::device_options& how = {}) : api(how), gpu(api), memory(gpu, 4096), staged(gpu, 4096) {}
  [[nodiscard]] float* x() const { return reinterpret_cast<float*>(memory.data()); }
  [[nodiscard]] float* host() const { return reinterpret_cast<float*>(staged.data()); }

  api_type api;
  belay::cuda::device<api_type> gpu;
  belay::cuda::device_memory<api_type> memory;
  belay::cuda::pinned_memory<api_type> staged;
};

// What a capture of `body` says, and that the stream works afterwards.
std::string refusal(const std::function<void(setting&, stream_type&, stream_type&)>& body) {
  setting here({work_order::late});
  std::string out;
  {
    stream_type compute(here.gpu), copies(here.gpu, stream_kind::copy);
    try {
      static_cast<void>(compute.capture([&] { body(here, compute, copies); }));
    } catch (const std::exception& problem) {
      out = problem.what();
    }
    CHECK_FALSE(here.gpu.capturing());
    here.host()[0] = 3;
    compute.copy(here.x(), here.host(), 4);
    compute.each(1, doubled{here.x()});
    compute.copy(here.host(), here.x(), 4);
    compute.synchronize();
    CHECK(here.host()[0] == 6);
  }
  return out;
}

}  // namespace

TEST_CASE("a graph runs when it is launched, as often as it is, and streams that it joins are in it") {
  for (const fakes::device_options& how : orders()) {
    setting here(how);
    stream_type compute(here.gpu), copies(here.gpu, stream_kind::copy);
    here.host()[0] = 1;
    compute.copy(here.x(), here.host(), 4);
    std::optional<belay::stream_event> within;
    belay::cuda::graph<api_type> graph = compute.capture([&] {
      compute.each(1, doubled{here.x()});
      copies.wait(compute.record());
      copies.each(1, plus_one{here.x()});  // after the doubling, before the next
      compute.wait(copies.record());
      compute.each(1, doubled{here.x()});
      within = compute.record();
      compute.each(1, plus_one{here.x()});
    });
    const auto value = [&] {
      compute.copy(here.host() + 1, here.x(), 4);
      compute.synchronize();
      return here.host()[1];
    };
    CHECK(value() == 1);  // nothing has run
    compute.launch(graph);
    within->synchronize();  // it stands for the end of the launch
    compute.launch(graph);
    CHECK(value() == 31);  // 1 -> 7 -> 31
    graph = compute.capture([&] { compute.each(1, plus_one{here.x()}); });
    compute.launch(graph);
    CHECK(value() == 32);
  }
}

TEST_CASE("a stream that joins captures is in each, and in one order with what it is given between launches") {
  for (const fakes::device_options& how : orders()) {
    setting here(how);
    stream_type compute(here.gpu), copies(here.gpu, stream_kind::copy);
    copies.join_captures();
    here.host()[0] = 1, here.host()[1] = 5;
    copies.copy(here.x(), here.host(), 8);  // before the capture: nothing in it says that it waits
    std::optional<belay::stream_event> within;
    belay::cuda::graph<api_type> first = compute.capture([&] {
      copies.each(1, doubled{here.x()});
      within = copies.record();
      compute.wait(*within);
      compute.each(1, plus_one{here.x()});
      copies.copy(here.x() + 2, here.x() + 1, 4);  // joined, though nobody waits for it
    });
    belay::cuda::graph<api_type> second = compute.capture([&] {
      copies.wait(*within);  // of another part, which is launched before
      compute.each(1, doubled{here.x()});
    });
    compute.launch(first);  // 1 -> 3
    within->synchronize();
    compute.launch(second);              // 6
    copies.each(1, plus_one{here.x()});  // 7, after the launch
    compute.launch(first);               // 15, after the copies
    copies.copy(here.host(), here.x(), 12);
    copies.synchronize();
    CHECK(here.host()[0] == 15);
    CHECK(here.host()[2] == 5);
    const auto fails = [&] {
      copies.each(1, doubled{here.x()});
      throw std::runtime_error("the body's own");
    };
    CHECK_THROWS_WITH(static_cast<void>(compute.capture(fails)), "the body's own");
    copies.each(1, plus_one{here.x()});
    copies.copy(here.host(), here.x(), 4);
    copies.synchronize();
    CHECK(here.host()[0] == 16);
  }
}

TEST_CASE(
    "what a rank that is alone starts in a capture is in the graph, after its event, and before who waits for it") {
  for (const fakes::device_options& how : orders()) {
    api_type api(how);
    belay::cuda::world(api, belay::host::world(1)).run([](auto& rank) {
      belay::cuda::kit kit(rank.gpu(), rank.watch());
      const belay::cuda::device_memory<api_type> memory(rank.gpu(), 64);
      const belay::cuda::pinned_memory<api_type> staged(rank.gpu(), 64);
      auto* const x = reinterpret_cast<float*>(memory.data());
      auto* const host = reinterpret_cast<float*>(staged.data());
      auto& compute = kit.stream();
      host[0] = 1;
      compute.copy(x, host, 4);
      const auto start = [&](const auto& after) {
        return rank.world().start_composite(belay::operation::all_gather_v, grown_in_turn{x}, after);
      };
      start(belay::after(compute.record())).then(compute);  // 2
      auto graph = compute.capture([&] {
        kit.each(1, doubled{x});
        start(belay::after(compute.record())).then(compute);
        kit.each(1, doubled{x});
      });
      compute.launch(graph);                         // 10
      start(belay::where::current()).then(compute);  // 11: after the launch
      compute.launch(graph);                         // 46
      compute.copy(host, x, 4);
      compute.synchronize();
      CHECK(host[0] == 46);
    });
    CHECK(api.empty());
  }
}

TEST_CASE("what a capture forbids is an error that names it, and the stream goes on") {
  const auto says = [](const std::string& text, const char* words) {
    CAPTURE(text);
    CHECK(text.find(words) != std::string::npos);
  };
  says(refusal([](setting&, stream_type& compute, stream_type&) { compute.synchronize(); }),
       "what is captured as a graph does not run before its launch");
  says(refusal([](setting& here, stream_type& compute, stream_type&) {
         CHECK_FALSE(compute.record().ready());
         api_type::event_type own{};
         static_cast<void>(here.api.make_event(own));
         static_cast<void>(here.api.record(own, compute.handle()));
         bool reached = false;
         const auto got = here.api.query(own, reached);
         static_cast<void>(here.api.destroy_event(own));
         here.gpu.expect(got, "query", 0, {});
       }),
       "query of an event that was recorded in a capture");
  says(refusal([](setting& here, stream_type&, stream_type& copies) {
         api_type::event_type own{};
         static_cast<void>(here.api.make_event(own));
         static_cast<void>(here.api.record(own, copies.handle()));
         bool reached = false;
         const auto got = here.api.query(own, reached);
         static_cast<void>(here.api.destroy_event(own));
         here.gpu.expect(got, "query", 0, {});
       }),
       "query in a capture");
  says(refusal([](setting& here, stream_type&, stream_type&) {
         static_cast<void>(belay::cuda::device_memory<api_type>(here.gpu, 64));
       }),
       "allocate in a capture");
  says(refusal([](setting& here, stream_type&, stream_type&) {
         static_cast<void>(belay::cuda::pinned_memory<api_type>(here.gpu, 64));
       }),
       "register_host in a capture");
  says(refusal([](setting& here, stream_type&, stream_type&) { stream_type another(here.gpu); }),
       "make_stream in a capture");
  says(refusal([](setting& here, stream_type& compute, stream_type& copies) {
         copies.copy(here.x(), here.host(), 4);
         compute.wait(copies.record());
       }),
       "an event that was recorded outside of the capture");
  says(refusal([](setting& here, stream_type& compute, stream_type& copies) {
         copies.wait(compute.record());
         copies.each(1, doubled{here.x()});
       }),
       "a stream that was captured too is not joined");
  says(refusal([](setting&, stream_type& compute, stream_type& copies) {
         static_cast<void>(copies.capture([&] { copies.wait(compute.record()); }));
       }),
       "an event of another capture");
  says(refusal([](setting&, stream_type& compute, stream_type&) { static_cast<void>(compute.capture([] {})); }),
       "the stream is captured already");
  says(refusal([](setting&, stream_type& compute, stream_type& copies) {
         belay::cuda::graph<api_type> other = copies.capture([] {});
         compute.launch(other);
       }),
       "launch in a capture");
  says(refusal([](setting&, stream_type&, stream_type&) { throw std::runtime_error("the body's own"); }),
       "the body's own");
}

TEST_CASE("events are asked for at any time around a capture: those of it are reached behind the first launch") {
  for (const bool by_another : {false, true}) {
    setting here({work_order::late});
    {
      stream_type compute(here.gpu), copies(here.gpu, stream_kind::copy);
      copies.join_captures();
      const auto ready = [by_another](const belay::stream_event& which) {
        bool is = false;
        if (by_another)
          std::thread([&] { is = which.ready(); }).join();
        else
          is = which.ready();
        return is;
      };
      here.host()[0] = 3;
      const belay::stream_event before = compute.record();
      belay::stream_event grown, copied;
      belay::cuda::graph<api_type> graph = compute.capture([&] {
        CHECK_FALSE(ready(before));
        copies.copy(here.x(), here.host(), sizeof(float));
        copied = copies.record();
        compute.wait(copied);
        compute.each(1, doubled{here.x()});
        grown = compute.record();
        CHECK_FALSE(ready(grown));
      });
      CHECK_FALSE(ready(grown));
      CHECK_FALSE(ready(copied));
      CHECK_THROWS_AS(grown.synchronize(), belay::usage_error);
      // Later places are reached; those of the capture are not for that.
      for (stream_type* const each : {&compute, &copies}) each->synchronize();
      CHECK(ready(before));
      CHECK_FALSE(ready(grown));
      CHECK_FALSE(ready(copied));
      compute.launch(graph);
      CHECK_FALSE(ready(grown));
      CHECK_FALSE(ready(copied));
      copies.wait(grown);
      copies.copy(here.host(), here.x(), sizeof(float));
      copies.synchronize();
      CHECK(here.host()[0] == 6);
      CHECK(ready(grown));
      CHECK(ready(copied));
    }
    here.memory = belay::cuda::device_memory<api_type>(here.gpu, 0);
    here.staged = {};
    CHECK(here.api.empty());
  }
}

TEST_CASE("what a group of a device does at once is refused in a capture") {
  api_type api({work_order::late});
  belay::cuda::world(api, belay::host::world(1)).run([](auto& rank) {
    belay::cuda::kit kit(rank.gpu(), rank.watch());
    const belay::cuda::device_memory<api_type> memory(rank.gpu(), 64);
    auto* const x = reinterpret_cast<float*>(memory.data());
    const auto& group = rank.world();
    const auto refused = [&](const char* what, const auto& call) {
      try {
        static_cast<void>(kit.stream().capture(call));
        FAIL_CHECK(what);
      } catch (const belay::usage_error& problem) {
        CHECK(std::string(problem.what()).find(std::string(what) + " in what is captured as a graph") !=
              std::string::npos);
      }
    };
    refused("a kernel between operations", [&] { group.each(1, doubled{x}); });
    refused("a copy to the host", [&] {
      float here = 0;
      group.fetch(&here, x, sizeof here);
    });
    refused("all_reduce", [&] { group.all_reduce(std::span<float>(x, 1), belay::sum); });
  });
  CHECK(api.empty());
}

TEST_CASE("a call that fails around a capture is a backend_error with its name, and nothing is left") {
  for (const char* name : {"begin_capture", "end_capture", "launch", "destroy_graph", "each", "record"}) {
    CAPTURE(name);
    std::size_t k = 0;
    for (const bool looks : {true, false}) {
      setting here({work_order::late, 0, looks ? 0 : k});
      const std::size_t made = here.api.calls().size();
      try {
        stream_type compute(here.gpu);
        belay::cuda::graph<api_type> graph = compute.capture([&] {
          compute.each(1, doubled{here.x()});
          static_cast<void>(compute.record());
        });
        compute.launch(graph);
      } catch (const belay::backend_error& problem) {
        CHECK(problem.about().call == name);
      }
      if (looks)
        for (k = made; k < here.api.calls().size() && here.api.calls()[k++] != name;) {
        }
      here.memory = belay::cuda::device_memory<api_type>(here.gpu, 0);
      here.staged = {};
      CHECK(here.api.empty());
    }
  }
}
