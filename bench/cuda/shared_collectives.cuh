// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Collectives of four ranks that share the card, beside a copy within it: by the bytes that an ideal kernel would read
// and write for all of them, of N bytes a rank R x 2 N of an all_reduce, (R + 1) x N of a reduction into shards or a
// gather of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/comm.hpp"
#include "cuda/figures.hpp"

namespace bench {

/// Their figures, with `bytes` a rank.
inline void measure_shared_collectives(std::size_t rounds, std::size_t bytes, figures& out) {
  using api_type = belay::cuda::runtime_api;
  constexpr int ranks = 4;
  constexpr std::size_t calls = 8, kinds = 3;
  const std::size_t count = bytes / sizeof(float), share = count / ranks;
  api_type api;
  const belay::cuda::world world(api, belay::host::world(ranks));
  std::vector<double> shares[kinds];
  world.run([&](auto& own) {
    const belay::rank rank(own);
    const belay::cuda::device_memory<api_type> memory(own.gpu(), 2 * bytes);
    auto* const first = reinterpret_cast<float*>(memory.data());
    const std::span<float> whole(first, count), part(first + count, share);
    belay::cuda::stream<api_type> stream(own.gpu(), belay::stream_kind::compute);
    const auto together = [&](const auto& work) {
      rank.control().barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < calls; ++i) work();
      rank.control().barrier();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
    };
    for (std::size_t r = 0; r <= rounds; ++r) {
      double copied = 0;  // of a byte that is read or written, by one rank while the others wait
      if (rank.number() == 0)
        copied = seconds_of(stream, calls, [&] { stream.copy(first, first + count, bytes); }) /
                 static_cast<double>(2 * bytes);
      const double took[kinds] = {together([&] { rank.world().all_reduce(whole, belay::sum); }), together([&] {
                                    rank.world().reduce_scatter(std::span<const float>(whole), part, belay::sum);
                                  }),
                                  together([&] { rank.world().all_gather(std::span<const float>(part), whole); })};
      const std::size_t moved[kinds] = {2 * ranks * bytes, (ranks + 1) * bytes, (ranks + 1) * bytes};
      for (std::size_t which = 0; rank.number() == 0 && r > 0 && which < kinds; ++which)
        shares[which].push_back(copied * static_cast<double>(moved[which]) / took[which]);
    }
  });
  const char* const names[kinds] = {"all_reduce", "reduce_scatter", "all_gather"};
  for (std::size_t which = 0; which < kinds; ++which)
    out.at_least(std::string(names[which]) + " of four ranks that share the card, of the speed of a copy",
                 median(shares[which]), 0.60, 0.85);
}

}  // namespace bench
