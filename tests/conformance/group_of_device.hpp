// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `belay::group` and `belay::device_group` over ranks whose buffers are memory of a device: traits, copies, kernels,
// composites and refusals.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/comm.hpp"
#include "belay/kernel/elementwise.hpp"

namespace conformance {

// Kernels between operations, in a composite, and in what a rank starts alone. `there` is four numbers of the device.
template <class Stream>
bool kernels_of_device_hold(const belay::device_group<Stream>& world, std::span<float> there) {
  using belay::kernel::fill, belay::kernel::scale;
  const auto ranks = static_cast<float>(world.size());
  std::vector<float> got(4);
  const auto holds = [&](float expected) {
    world.fetch(got.data(), there.data(), 16);
    return got == std::vector<float>(4, expected);
  };
  world.each(4, fill<float>{there.data(), 3});
  bool ok = holds(3);
  const auto work = [there](const auto& calls) {
    calls.each(4, scale<float>{2, there.data()});
    calls.all_reduce(there, belay::sum);
    calls.each(4, scale<float>{0.5F, there.data()});
  };
  world.start_composite(belay::operation::all_reduce, work).wait();
  ok = ok && holds(3 * ranks);
  std::string refusal;
  try {
    world.start_local(belay::operation::none, [there](Stream& stream) { stream.each(4, fill<float>{there.data(), 7}); })
        .wait();
    ok = ok && holds(7);
  } catch (const belay::usage_error& slip) {
    refusal = slip.what();
  }
  return ok && refusal.empty() == world.traits().starts_local_work;
}

// Whether all holds on a rank of two or more.
template <class Rank>
bool group_of_device_holds(Rank& rank) {
  using api_type = std::remove_cvref_t<decltype(rank.gpu().api())>;
  const belay::group world = rank.world();
  const int ranks = world.size();
  bool ok = world.traits().on_device && world.device() != nullptr && !world.control().traits().on_device &&
            world.control().size() == ranks && world.control().rank() == world.rank();
  // Numbers of the host there, their sum back.
  belay::cuda::device_memory<api_type> memory(rank.gpu(), 64);
  const std::span<float> there(reinterpret_cast<float*>(memory.data()), 4);
  const std::vector<float> mine(4, static_cast<float>(1 + world.rank()));
  std::vector<float> got(4);
  const auto total = static_cast<float>(ranks * (ranks + 1) / 2);
  world.device()->place(there.data(), mine.data(), 16, belay::where::current());
  world.all_reduce(there, belay::sum);
  world.device()->fetch(got.data(), there.data(), 16, belay::where::current());
  ok = ok && got == std::vector<float>(4, total);
  // A composite: on the device, and what ranks agree on beside it.
  int together = 0;
  const auto work = [there, at = &together](const belay::group_calls& calls) {
    calls.all_reduce(there, belay::average);
    int one = 1;
    calls.control().all_reduce(std::span(&one, 1), belay::sum);
    *at = one;
  };
  world.start_composite(belay::operation::all_reduce, work).wait();
  world.device()->fetch(got.data(), there.data(), 16, belay::where::current());
  ok = ok && got == std::vector<float>(4, total) && together == ranks;
  ok = kernels_of_device_hold<belay::cuda::stream<api_type>>(world, there) && ok;
  const belay::group in_heap = belay::ranks_of_heap(world);
  ok = ok && in_heap.traits().addresses_peers && in_heap.size() == (world.traits().addresses_peers ? ranks : 1);
  // Calls that it lacks are refused on every rank, before anything is queued.
  const auto refusal = [](const auto& call) {
    try {
      call();
    } catch (const belay::usage_error& slip) {
      return std::string(slip.what());
    }
    return std::string();
  };
  const std::span<long double> wide(reinterpret_cast<long double*>(memory.data()), 1);
  ok = ok && refusal([&] {
               world.start_local(belay::operation::none, [] {}).wait();
             }).find("on the streams of its device") != std::string::npos;
  ok = ok && refusal([&] {
               world.all_reduce(wide, belay::sum);
             }).find("16-byte elements without a dtype are not reduced on a device") != std::string::npos;
  world.broadcast(wide, 0);  // which moves them
  return ok;
}

}  // namespace conformance
