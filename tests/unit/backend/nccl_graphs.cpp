// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Operations over NCCL that are started while a stream is captured: they are in every launch, in every order of the
// devices' streams; what a capture forbids is refused by name, and what fails in a launch is the rank's failure.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/nccl.hpp"
#include "belay/comm.hpp"
#include "unit/backend/nccl_world.hpp"

using namespace nccl_test;
using fakes::work_order;

namespace {

struct plus_one {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] += 1; }
};
using stream_type = belay::cuda::stream<fakes::device_api>;

// x becomes the sum over the ranks of x + 1, and the neighbour gets it.
template <class Rank>
void queue_step(const Rank& rank, stream_type& compute, std::span<float> x, std::span<float> from_neighbour) {
  compute.each(x.size(), plus_one{x.data()});
  auto sum = rank.world().start_all_reduce(x, belay::sum, belay::after(compute.record()));
  std::move(sum).then(compute);
  const int next = (rank.number() + 1) % rank.size(), last = (rank.number() + rank.size() - 1) % rank.size();
  const std::array<belay::p2p, 2> transfers{belay::p2p::send(next, std::span<const float>(x), 0),
                                            belay::p2p::receive(last, from_neighbour, 0)};
  rank.world().start_exchange(transfers, belay::after(compute.record())).in_start_order();
}

// What a capture of `body` by rank 0 says; the other rank's has nothing.
template <class Body>
outcome refused(const Body& body, std::string& said) {
  return run(2, {}, plain, [&](auto& rank, const device_type& gpu, fakes::nccl_api&) {
    bridge at(gpu, 256);
    stream_type compute(gpu, belay::stream_kind::compute, rank.watch());
    rank.world().all_reduce(at.floats(0, 4), belay::sum);
    if (rank.number() != 0) return;
    try {
      static_cast<void>(compute.capture([&] { body(rank, gpu, compute, at); }));
    } catch (const belay::usage_error& problem) {
      said = problem.what();
    } catch (const belay::backend_error& problem) {
      said = problem.what();
      throw;
    }
  });
}
void says(const std::string& text, const char* words) {
  CAPTURE(text);
  CHECK(text.find(words) != std::string::npos);
}

// A device that leaves out the waits of one kind of stream while it captures.
class unjoined_api : public fakes::device_api {
 public:
  enum class left_out { forks, joins };
  unjoined_api(const fakes::device_options& how, left_out what) : device_api(how), what_(what) {}
  status_type begin_capture(stream_type on) {
    const std::lock_guard lock(mutex_);
    origin_ = on;
    return device_api::begin_capture(on);
  }
  status_type wait(stream_type on, event_type which) {
    const std::lock_guard lock(mutex_);
    if (origin_ != nullptr && (on == origin_) == (what_ == left_out::joins)) return {};
    return device_api::wait(on, which);
  }

 private:
  left_out what_;
  std::mutex mutex_;
  stream_type origin_ = nullptr;
};

}  // namespace

TEST_CASE("operations that are started in a capture are in each launch, and in order with those beside it") {
  for (const world_options& how : {world_options{work_order::eager},
                                   {work_order::late},
                                   {work_order::random, 1},
                                   {work_order::random, 2},
                                   {work_order::random, 3}})
    for (const int ranks : {1, 2, 3}) {
      std::vector<std::vector<float>> got(static_cast<std::size_t>(ranks));
      const outcome out = run<belay::nccl::sums::fixed_order>(
          ranks, how, plain, [&](auto& rank, const device_type& gpu, fakes::nccl_api&) {
            bridge at(gpu, 256);
            stream_type compute(gpu, belay::stream_kind::compute, rank.watch());
            at.put(std::vector<float>(16, static_cast<float>(rank.number())));
            const auto x = at.floats(0, 4), beside = at.floats(4, 4);
            queue_step(rank, compute, x, beside);  // connections are made outside of captures
            auto graph = compute.capture([&] { queue_step(rank, compute, x, beside); });
            compute.launch(graph);
            compute.launch(graph);
            auto eager = rank.world().start_all_reduce(beside, belay::sum);  // behind the launches, by itself
            std::move(eager).then(compute);
            compute.launch(graph);
            compute.synchronize();
            got[static_cast<std::size_t>(rank.number())] = at.get(8);
          });
      CHECK(out.succeeded());
      float x = 0;
      for (int r = 0; r < ranks; ++r) x += static_cast<float>(r);
      x += static_cast<float>(ranks);  // the first sum, of r + 1
      for (int launch = 0; launch < 3; ++launch) x = static_cast<float>(ranks) * (x + 1);
      for (const auto& each : got) CHECK(each == std::vector<float>(8, x));
    }
}

TEST_CASE("what a capture forbids is refused by name, and the rank goes on") {
  std::string said;
  const auto refused_and_goes_on = [&](const char* words, const auto& body) {
    const outcome out = refused(body, said);
    CHECK(out.succeeded());
    says(said, words);
  };
  refused_and_goes_on(
      "all_reduce in what is captured as a graph would be done now",
      [](auto& rank, const auto&, auto&, bridge& at) { rank.world().all_reduce(at.floats(0, 4), belay::sum); });
  refused_and_goes_on("what is captured as a graph does not run before its launch",
                      [](auto& rank, const auto&, auto&, bridge& at) {
                        rank.world().start_all_reduce(at.floats(0, 4), belay::sum).wait();
                      });
}

TEST_CASE("NCCL makes no communicator in a capture") {
  std::string said;
  const outcome out = run(2, {}, plain, [&](auto& rank, const device_type& gpu, fakes::nccl_api& policy) {
    stream_type compute(gpu, belay::stream_kind::compute, rank.watch());
    if (rank.number() != 0) return;
    static_cast<void>(compute.capture([&] {
      fakes::nccl_api::communicator_type made{};
      said = fakes::nccl_api::text(policy.init(made, 2, {}, 0, belay::nccl::calls::blocking));
    }));
  });
  CHECK(said == "init in a capture");
  CHECK(out.refusals == std::vector<std::string>{"init in a capture"});
  says(out.ranks[0].what, "init in a capture");
}

TEST_CASE("a communication stream that is not forked, or not joined, is seen") {
  for (const auto left_out : {unjoined_api::left_out::forks, unjoined_api::left_out::joins}) {
    unjoined_api gpu({.order = work_order::late, .devices = 1}, left_out);
    fakes::nccl_fabric fabric(gpu);
    std::string said;
    try {
      belay::host::world{1}.run([&](belay::host::rank& control) {
        fakes::nccl_api policy(fabric);
        const belay::cuda::device<unjoined_api> device(gpu, 0);
        belay::nccl::rank<belay::host::rank, unjoined_api, fakes::nccl_api> rank(control, device, policy,
                                                                                 {.workspace_bytes = 1024});
        const belay::cuda::device_memory<unjoined_api> memory(device, 64);
        const std::span<float> x(reinterpret_cast<float*>(memory.data()), 8);
        belay::cuda::stream<unjoined_api> compute(device);
        static_cast<void>(compute.capture(
            [&] { rank.world().start_all_gather(std::span<const float>(x.first(4)), x.last(4)).in_start_order(); }));
      });
    } catch (const belay::backend_error& problem) {
      said = problem.what();
    }
    says(said, left_out == unjoined_api::left_out::joins ? "a stream that was captured too is not joined"
                                                         : "outside of the capture");
  }
}

TEST_CASE("a graph that is left when the rank finishes is refused: NCCL would wait for it") {
  using graph_type = belay::cuda::graph<fakes::device_api>;
  std::array<std::unique_ptr<graph_type>, 2> left;
  const outcome out = run(2, {}, plain, [&](auto& rank, const device_type& gpu, fakes::nccl_api&) {
    bridge at(gpu, 256);
    stream_type compute(gpu);
    auto& mine = left[static_cast<std::size_t>(rank.number())];
    mine = std::make_unique<graph_type>(
        compute.capture([&] { queue_step(rank, compute, at.floats(0, 4), at.floats(4, 4)); }));
    try {
      rank.finish();
      FAIL_CHECK("finished");
    } catch (const belay::usage_error& problem) {
      says(problem.what(), "finish: 1 graphs with operations of the rank are left");
    }
    mine.reset();
  });
  CHECK(out.succeeded());
}

TEST_CASE("what fails in a launch is an error that names the graph's rank and operations, and nobody hangs") {
  using failing_way = fakes::nccl_injection::failing_way;
  for (const failing_way how : {failing_way::asynchronous, failing_way::silent}) {
    const auto train = [](auto& rank, const device_type& gpu, fakes::nccl_api&, kept_memory& kept) {
      bridge& at = kept_bridge(kept, gpu, 256);
      stream_type compute(gpu, belay::stream_kind::compute, rank.watch());
      queue_step(rank, compute, at.floats(0, 4), at.floats(4, 4));
      auto graph = compute.capture([&] { queue_step(rank, compute, at.floats(0, 4), at.floats(4, 4)); });
      for (int step = 0; step < 2; ++step) {
        compute.launch(graph);
        compute.synchronize();
        rank.control().barrier();
      }
    };
    std::uint64_t at_call = 0;
    const outcome fine = run(2, {}, plain, [&](auto& rank, const device_type& gpu, auto& policy, kept_memory& kept) {
      train(rank, gpu, policy, kept);
      if (rank.number() == 1)
        for (std::uint64_t k = 0; k < policy.names().size(); ++k)
          if (policy.names()[k] == "launched") at_call = k + 1;
    });
    CHECK(fine.succeeded());
    REQUIRE(at_call > 0);
    const outcome out = run(
        2, {.timeout = std::chrono::milliseconds(300)},
        [&](fakes::nccl_fabric& fabric, int number) {
          return fakes::nccl_api(fabric, number == 1 ? fakes::nccl_injection{at_call, how} : fakes::nccl_injection{});
        },
        train);
    CHECK(out.refusals.empty());
    CHECK(out.all_freed);
    for (const end_of_rank& each : out.ranks) {
      CAPTURE(each.what);
      CHECK(each.kind != belay::error_kind::none);
      says(each.what,
           how == failing_way::silent ? "a graph of 2 operations, the first of which is all_reduce #2" : "injected");
    }
  }
}
