// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// mpi_victim MODE TIMEOUT STALL: a job whose rank 1 fails as MODE says in the middle of its work; the others print the
// error that they get. With "queued-MODE" the work is in flight: kernels and started operations on streams; with
// "experts-MODE" tokens on their way to experts and back; with "store-PLACE-MODE" a store's divided parameters are
// gathered, its gradients reduced or its shards updated, or, with "store-PLACE", the rank makes other calls than its
// peers.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/mpi.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

namespace {

// False: the rank is to return early.
bool fail(const std::string& mode, belay::mpi::rank& rank) {
  if (mode == "throw") throw std::domain_error("the culprit's own words");
  if (mode == "return") return false;
  if (mode == "kill") ::kill(::getpid(), SIGKILL);
  if (mode == "segv") ::kill(::getpid(), SIGSEGV);
  if (mode == "abort") std::abort();
  if (mode == "exit") std::_Exit(5);
  if (mode == "stop") ::kill(::getpid(), SIGSTOP);
  if (mode == "elsewhere") rank.group(std::vector<int>{0, 1}).barrier(belay::where{"elsewhere.cpp", "", 7});
  return true;
}

// What the moves of an exchange use, which outlives the world: some are under way when a body is left.
struct exchange_memory {
  static constexpr std::size_t rows = 40, hidden = 300, experts = 6, k = 2;
  using exchange_type = belay::expert_exchange<float>;

  belay::tier_meter meter;
  belay::symmetric_heap<belay::group> heap;
  belay::host_engine engine;
  exchange_type exchange;
  belay::invocation call{"experts", 0, 0, belay::where::current()};
  belay::invocation_memory memory;
  std::vector<float> x, logits, dweights;

  explicit exchange_memory(const belay::mpi::rank& rank)
      : heap(rank.world(), {8 << 20, 64, &meter}),
        engine(belay::host_pages(16 << 20), meter, {belay::stream_policy::queued, nullptr, rank.watch()},
               rank.number()),
        exchange(rank.world(), heap, {experts, k, hidden, 3 * rows * k}),
        x(rows * hidden, 1.0F),
        logits(rows * experts),
        dweights(rows * k) {
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 11);
  }

  // Tokens to the experts and back, and their gradients; the host waits for nothing.
  void queue() {
    belay::frame<belay::host_engine> frame{engine, call, belay::frame_mode::owing, memory};
    const belay::view<const float, 2> in{x.data(), {rows, hidden}};
    const belay::view<float, 2> out{x.data(), {rows, hidden}};
    const auto routed = belay::route<float>(frame, {logits.data(), {rows, experts}}, k);
    auto there = exchange.dispatch(frame, in, routed);
    frame.run([from = there.rows(), to = there.outputs()] { std::copy_n(from.data(), from.size(), to.data()); });
    auto merged = std::move(there).combine(frame, out);
    auto back = std::move(merged).backward(frame, in, {dweights.data(), {rows, k}});
    frame.run([from = back.output_gradients(), to = back.row_gradients()] {
      std::copy_n(from.data(), from.size(), to.data());
    });
    std::move(back).finish(frame, out);
  }
};

struct listed : network_bench::linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct two_layers {
  listed first{{{"first.weight", {7, 7}}}}, second{{{"second.weight", {7, 7}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

// Three steps of divided parameters. In the second, rank 1 fails as `mode` says in a gather, a reduction or an update,
// or it calls a layer beside the plan that no other calls, or another one than its peers.
auto training(const std::string& place, const std::string& mode) {
  return [place, mode](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    two_layers net;
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.bucket_bytes = 128}};
    belay::gathers first{net.first, store}, second{net.second, store};
    belay::adamw optimizer{store};
    const network_bench::data batch(1, 0);
    for (auto number : run.steps(3)) {
      const bool second_step = !run.rehearsing() && number == 2;
      const auto returns = [&](const char* here) {
        return second_step && rank.number() == 1 && place == here &&
               !fail(mode, *rank.template backend<belay::mpi::rank>());
      };
      belay::step step{run.engine(), store};
      if (second_step && place == "one_more_call" && rank.number() == 1)
        static_cast<void>(belay::observe(step, second, batch.inputs()));
      auto h = belay::forward(step, first, belay::constant(batch.inputs()));  // the next layer's gather is started
      if (returns("gather")) return;
      auto y = belay::forward(step, second, h.out());
      auto [loss, grad] = belay::squared_error(step, y.out(), batch.inputs());
      grad = std::move(y).backward(grad);  // its reduction is started
      if (returns("reduction")) return;
      std::move(h).backward(grad);
      if (second_step && place == "other_call")
        static_cast<void>(belay::observe(step, rank.number() == 1 ? first : second, batch.inputs()));
      auto outcome = std::move(step).commit(mesh, belay::samples{network_bench::rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr || returns("update")) return;
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
    }
  };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string queued = "queued-";
  const bool in_flight = std::string(argv[1]).rfind(queued, 0) == 0;
  const std::string experts = "experts-";
  const bool exchanges = std::string(argv[1]).rfind(experts, 0) == 0;
  const std::string store = "store-", whole = argv[1];
  const std::string mode = in_flight || exchanges ? std::strchr(argv[1], '-') + 1 : argv[1];
  std::optional<exchange_memory> rows;
  using seconds = std::chrono::duration<double>;
  belay::mpi::world world({.timeout = seconds(std::atof(argv[2])), .stall = seconds(std::atof(argv[3]))});
  try {
    if (whole.rfind(store, 0) == 0) {
      const std::size_t end = whole.find('-', store.size());
      const std::string place = whole.substr(store.size(), end - store.size());
      belay::launch(world, training(place, end == std::string::npos ? "nothing" : whole.substr(end + 1)));
      std::printf("rank %d is done\n", world.number());
      return 0;
    }
    world.run([&](belay::mpi::rank& rank) {
      const auto values = std::make_shared<std::vector<float>>(100'000, 1.0F);
      std::vector<float>& x = *values;
      if (exchanges) {
        rows.emplace(rank);
        for (int step = 0; step < 10; ++step) {
          rows->queue();
          if (step == 5 && rank.number() == 1 && !fail(mode, rank)) return;
        }
        return rows->engine.compute().synchronize();
      }
      const auto policy = in_flight ? belay::stream_policy::queued : belay::stream_policy::immediate;
      belay::host_stream compute({policy, nullptr, rank.watch()}, rank.number());
      for (int step = 0; step < 10; ++step) {
        if (in_flight) {
          float* const first = x.data();
          compute.run([first] { *first = 1; });
          auto largest = rank.world().start_all_reduce(
              std::span(x), belay::maximum, belay::start_order(belay::after(compute.record())).keeping(values));
          std::move(largest).then(compute);
          compute.run([first] { *first += 1; });
          if (step == 5 && rank.number() == 1 && !fail(mode, rank)) return;
          if (step == 9) compute.synchronize();
          continue;
        }
        rank.world().all_reduce(std::span(x), belay::maximum);
        // Every rank has the result of #5 before rank 1 fails.
        if (step == 5) MPI_Barrier(MPI_COMM_WORLD);
        if (step == 5 && rank.number() == 1 && !fail(mode, rank)) return;
      }
    });
  } catch (const belay::comm_error& told) {
    std::string culprits;
    for (int rank : told.about().culprits) culprits += " " + std::to_string(rank);
    std::printf("rank %d is told: %s by%s: %s\n", world.number(), name(told.fault()), culprits.c_str(), told.what());
    return 3;
  } catch (const std::exception& own) {
    std::printf("rank %d throws: %s\n", world.number(), own.what());
    return 4;
  }
  std::printf("rank %d is done\n", world.number());
}
