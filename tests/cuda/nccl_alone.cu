// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// All that Belay asks of NCCL, by one rank on one card: a parent that does not block is split, a child does each
// operation once, has a window and a team of one, is captured and launched twice, and ends in order; others are aborted
// from another thread. What needs a second rank is nccl and nccl_peers.
#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "belay/core/where.hpp"
#include "belay/device/stream_watch.hpp"
#include "support/card.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
using nccl_type = belay::nccl::runtime_nccl;
using belay::dtype, belay::reduction, belay::where;

constexpr std::size_t count = 1000, bytes = count * sizeof(float);

int failures = 0;
void check(bool right, const char* what) {
  std::printf("%s: %s\n", what, right ? "as it should be" : "WRONG");
  if (!right) ++failures;
}

// Of a world of one rank, which fails by throwing.
class single_rank_watch final : public belay::stream_watch {
 public:
  [[nodiscard]] std::chrono::steady_clock::duration limit() const noexcept override { return std::chrono::seconds(30); }
  [[nodiscard]] bool failed() const noexcept override { return false; }
  [[noreturn]] void raise(where) const override { throw std::runtime_error("the world has failed"); }
  [[noreturn]] void give_up(const std::string& what, where) const override { throw std::runtime_error(what); }
  void fail(belay::error_kind, const std::string& what, where) const override { std::printf("%s\n", what.c_str()); }
  [[nodiscard]] int rank() const noexcept override { return 0; }
};

struct counted {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] = static_cast<float>(i % 100) + 1; }
};
struct doubled {
  float* x;
  BELAY_HD void operator()(std::size_t i) const { x[i] *= 2; }
};
// By the address that a peer of the team would use.
struct stored {
  std::byte* const* windows;
  BELAY_HD void operator()(std::size_t i) const { reinterpret_cast<float*>(windows[0])[i] = static_cast<float>(i % 7); }
};

class trial {
 public:
  trial(const belay::cuda::device<api_type>& gpu, const belay::nccl::library<nccl_type>& lib)
      : lib_(lib),
        stream_(gpu),
        device_(gpu, 3 * bytes),
        host_(gpu, bytes),
        failure_(std::make_shared<single_rank_watch>()) {}

  [[nodiscard]] belay::nccl::communicators<nccl_type> made() { return {lib_, failure_}; }
  void init(belay::nccl::communicators<nccl_type>& all) {
    belay::nccl::unique_id id{};
    lib_.expect(lib_.api().make_id(id), "make_id", 0, where::current());
    all.init(1, id, where::current());
  }

  // A sum, a gathering, a transfer of one rank is a copy.
  void operations(ncclComm_t on) {
    const nccl_type& nccl = lib_.api();
    const auto does = [&](const char* name, const auto& call) {
      stream_.each(count, counted{in()});
      lib_.expect(call(), name, bytes, where::current());
      check(holds(out(), counted_values()), name);
      stream_.each(count, doubled{out()});  // what the next one must write
    };
    const auto on_stream = stream_.handle();
    does("all_reduce", [&] { return nccl.all_reduce(in(), out(), count, dtype::f32, reduction::sum, on, on_stream); });
    does("reduce_scatter",
         [&] { return nccl.reduce_scatter(in(), out(), count, dtype::f32, reduction::maximum, on, on_stream); });
    does("reduce", [&] { return nccl.reduce(in(), out(), count, dtype::f32, reduction::average, 0, on, on_stream); });
    does("all_gather", [&] { return nccl.all_gather(in(), out(), count, dtype::f32, on, on_stream); });
    does("all_to_all", [&] { return nccl.all_to_all(in(), out(), count, dtype::f32, on, on_stream); });
    does("broadcast", [&] { return nccl.broadcast(in(), out(), count, dtype::f32, 0, on, on_stream); });
    does("gather", [&] { return nccl.gather(in(), out(), count, dtype::f32, 0, on, on_stream); });
    does("scatter", [&] { return nccl.scatter(in(), out(), count, dtype::f32, 0, on, on_stream); });
    does("send and receive", [&] {
      lib_.expect(nccl.group_start(), "group_start", 0, where::current());
      lib_.expect(nccl.send(in(), count, dtype::f32, 0, on, on_stream), "send", bytes, where::current());
      lib_.expect(nccl.receive(out(), count, dtype::f32, 0, on, on_stream), "receive", bytes, where::current());
      return nccl.group_end();
    });
  }

  // Where NCCL makes no window of one rank, or no team of it, that is said, and is no failure.
  void window(ncclComm_t on) {
    const nccl_type& nccl = lib_.api();
    const std::size_t whole = nccl_type::window_granularity();
    std::byte* memory = nullptr;
    lib_.expect(nccl.allocate(memory, whole), "allocate", whole, where::current());
    ncclWindow_t made = nullptr;
    lib_.expect(nccl.register_window(on, memory, whole, made), "register_window", whole, where::current());
    belay::nccl::load_store_team team;
    if (made != nullptr) lib_.expect(nccl.find_team(on, team), "find_team", 0, where::current());
    std::printf("a window: %s, its team: %d\n", made != nullptr ? "made" : "none", team.ranks);
    if (team.ranks > 0) {
      check(team.ranks == 1 && team.rank == 0, "a team of one");
      auto** const table = reinterpret_cast<std::byte**>(out());
      lib_.expect(nccl.write_pointers(stream_.handle(), made, team, table), "write_pointers", 0, where::current());
      stream_.each(count, stored{table});
      std::vector<float> expected(count);
      for (std::size_t i = 0; i < count; ++i) expected[i] = static_cast<float>(i % 7);
      check(holds(reinterpret_cast<const float*>(memory), expected),
            "a window that a kernel has written by its pointer");
    }
    lib_.expect(nccl.deregister_window(on, made), "deregister_window", 0, where::current());
    lib_.expect(nccl.release(memory), "release", 0, where::current());
  }

  void graph(ncclComm_t on) {
    stream_.each(count, counted{in()});
    stream_.synchronize();
    {
      auto twice = stream_.capture([&] {
        stream_.each(count, doubled{in()});
        lib_.expect(lib_.api().all_reduce(in(), out(), count, dtype::f32, reduction::sum, on, stream_.handle()),
                    "all_reduce", bytes, where::current());
      });
      stream_.launch(twice);
      stream_.launch(twice);
      stream_.synchronize();
    }
    std::vector<float> expected = counted_values();
    for (float& each : expected) each *= 4;
    check(holds(out(), expected), "a graph that was launched twice");
  }

 private:
  [[nodiscard]] float* in() const { return reinterpret_cast<float*>(device_.data()); }
  [[nodiscard]] float* out() const { return in() + 2 * count; }
  [[nodiscard]] static std::vector<float> counted_values() {
    std::vector<float> all(count);
    for (std::size_t i = 0; i < count; ++i) counted{all.data()}(i);
    return all;
  }
  [[nodiscard]] bool holds(const float* there, const std::vector<float>& expected) {
    stream_.copy(host_.data(), there, bytes);
    stream_.synchronize();
    return std::memcmp(host_.data(), expected.data(), bytes) == 0;
  }

  const belay::nccl::library<nccl_type>& lib_;
  belay::cuda::stream<api_type> stream_;
  belay::cuda::device_memory<api_type> device_;
  belay::cuda::pinned_memory<api_type> host_;
  belay::nccl::rank_failure failure_;
};

}  // namespace

int main() try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no device: compiled and linked\n");
    return test::code_without_card();
  }
  api_type api;
  const belay::cuda::device<api_type> gpu(api);
  nccl_type nccl;
  const belay::nccl::library<nccl_type> lib(nccl);
  std::printf("NCCL %s\n", belay::nccl::version_text(lib.expect_version()).c_str());
  trial one(gpu, lib);
  {
    auto all = one.made();
    one.init(all);
    check(all.split(-1, 0, where::current()) == nullptr, "a split that makes none");
    ncclComm_t const child = all.split(0, 0, where::current());
    one.operations(child);
    one.window(child);
    one.graph(child);
    check(!all.met(), "nothing met");
    all.destroy(where::current());
    check(!all.alive(), "ended in order");
  }
  {
    auto all = one.made();
    one.init(all);
    static_cast<void>(all.split(0, 0, where::current()));
    std::thread([&] { all.abort(); }).join();
    check(!all.alive(), "aborted from another thread");
  }
  return failures == 0 ? 0 : 1;
} catch (const std::exception& problem) {
  std::printf("%s\n", problem.what());
  return 1;
}
