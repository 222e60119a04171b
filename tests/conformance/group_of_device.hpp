// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// `belay::group` over ranks whose buffers are memory of a device: traits, copies, composites and refusals.
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/comm.hpp"

namespace conformance {

// Whether all holds on a rank of two or more.
template <class Rank>
bool group_of_device_holds(Rank& rank) {
  using api_type = std::remove_cvref_t<decltype(rank.gpu().api())>;
  const belay::group world = rank.world();
  const int ranks = world.size();
  bool ok = world.traits().on_device && world.device() != nullptr && !world.traits().starts_local_work &&
            !world.control().traits().on_device && world.control().size() == ranks &&
            world.control().rank() == world.rank();
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
