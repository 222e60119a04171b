// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that share a device over the real runtime: they sum and send what kernels have made, in the order of streams,
// and exchange rows with each other's experts. Without a device the world is refused in one clear backend_error.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "belay/cuda.cuh"
#include "belay/kernel.hpp"
#include "support/card.hpp"
#include "unit/backend/exchanged_rows.hpp"

namespace {

using api_type = belay::cuda::runtime_api;
constexpr std::size_t count = 100'003;

template <class Rank>
bool sums(Rank& rank) {
  const auto& world = rank.world();
  belay::cuda::kit<api_type> kit(rank.gpu(), rank.watch());
  const belay::cuda::device_memory<api_type> memory(rank.gpu(), 2 * count * sizeof(float));
  const belay::cuda::pinned_memory<api_type> result(rank.gpu(), 2 * count * sizeof(float));
  const std::span<float> x(reinterpret_cast<float*>(memory.data()), count), y(x.data() + count, count);
  kit.each(count, belay::kernel::fill<float>{x.data(), 0.1F * static_cast<float>(world.rank() + 1)});
  const int next = (world.rank() + 1) % world.size(), previous = (world.rank() + world.size() - 1) % world.size();
  const belay::p2p ring[] = {belay::p2p::send(next, std::span<const float>(x)), belay::p2p::receive(previous, y)};
  belay::pending sent = world.start_exchange(ring, belay::after(kit.stream().record()));
  belay::pending summed = world.start_all_reduce(x, belay::sum);  // in its turn
  std::move(sent).then(kit.stream());
  std::move(summed).then(kit.stream());
  kit.stream().copy(result.data(), memory.data(), result.size_bytes());
  kit.stream().synchronize();
  float total = 0.1F;
  for (int q = 1; q < world.size(); ++q) total += 0.1F * static_cast<float>(q + 1);
  const auto* const got = reinterpret_cast<const float*>(result.data());
  bool ok = true;
  for (std::size_t i = 0; i < count; ++i)
    ok = ok && got[i] == total && got[count + i] == 0.1F * static_cast<float>(previous + 1);
  world.all_reduce(y, belay::average);
  return ok;
}

// Of numbers that are alike but for fused multiplications.
template <class T>
bool exchanges(api_type& api) {
  const exchanged_rows::sizes of{7, 6, 3, 16, 13};  // too little room
  const auto expected = exchanged_rows::on_host<T>(2, of);
  const auto got = exchanged_rows::on_device<T>(api, 2, of, belay::freed_memory::as_it_was);
  bool ok = true;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ok = ok && got[rank].needed == expected[rank].needed;
    const auto* const here = reinterpret_cast<const T*>(got[rank].memory.data());
    const auto* const there = reinterpret_cast<const T*>(expected[rank].memory.data());
    for (std::size_t i = 0; i < (exchanged_rows::room - 512) / sizeof(T); ++i) {
      const double a = static_cast<double>(here[i]), b = static_cast<double>(there[i]);
      ok = ok && std::abs(a - b) <= 1e-3 * (1 + std::abs(b));
    }
  }
  return ok;
}

}  // namespace

int main() {
  api_type api;
  int devices = 0;
  const bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  try {
    const belay::cuda::world<api_type, belay::host::world> world(api, belay::host::world(3));
    bool ok = has_device;
    for (const bool one : world.run([](auto& rank) { return sums(rank); })) ok = ok && one;
    ok = exchanges<float>(api) && ok;
    std::printf("three ranks on a device: %s\n", ok ? "as they should" : "wrong");
    return ok ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return !has_device && problem.about().call == "open" ? test::code_without_card() : 1;
  }
}
