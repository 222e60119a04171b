// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The kernels of rows of a step in bf16, by the bytes that each has to read and write, beside a copy within the device.
// Arrays are far larger than caches.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/core/dtype.hpp"
#include "belay/kernel.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "cuda/figures.hpp"

namespace bench {

/// Their figures, with arrays of `bytes` each: rows of 1024 columns, of 3584 for experts, and long ones for losses.
template <class Kit>
void measure_rows(const belay::cuda::device<belay::cuda::runtime_api>& gpu, Kit& kit, std::size_t rounds,
                  std::size_t bytes, figures& out) {
  namespace k = belay::kernel;
  using belay::bf16;
  constexpr std::size_t hidden = 1024, width = 3584, vocabulary = 16384, calls = 4;
  const std::size_t rows = bytes / (hidden * sizeof(float)), tokens = rows / 2;
  const belay::cuda::device_memory<belay::cuda::runtime_api> arrays(gpu, 4 * bytes),
      small(gpu, 3 * rows * sizeof(double) + sizeof(std::size_t));
  const auto floats = [&](std::size_t array) { return reinterpret_cast<float*>(arrays.data() + array * bytes); };
  const auto narrow = [&](std::size_t array) { return reinterpret_cast<bf16*>(floats(array)); };
  // Two numbers a row, the place of each choice, and the rows that experts have.
  auto* const losses = reinterpret_cast<double*>(small.data());
  auto* const of_rows = reinterpret_cast<float*>(losses + rows);
  auto* const places = reinterpret_cast<std::int32_t*>(of_rows + rows);
  auto* const used = reinterpret_cast<std::size_t*>(losses + 3 * rows);
  const auto give = [](void* to, const void* from, std::size_t count) {
    const cudaError_t got = cudaMemcpy(to, from, count, cudaMemcpyHostToDevice);
    if (got != cudaSuccess) throw belay::input_error(cudaGetErrorString(got), belay::where::current());
  };
  std::vector<std::int32_t> order(2 * tokens);
  std::iota(order.begin(), order.end(), 0);
  give(places, order.data(), order.size() * sizeof order[0]);
  const std::size_t expert_rows = bytes / (2 * width * sizeof(bf16));
  give(used, &expert_rows, sizeof expert_rows);
  kit.each(rows, k::fill<float>{of_rows, 1.0F});
  for (std::size_t array = 0; array < 4; ++array) kit.each(bytes / sizeof(float), k::fill<float>{floats(array), 0.01F});

  const belay::placed_rows<bf16> slots{narrow(1), 0, nullptr, places, 1, 2, hidden};
  const auto measure = [&](const std::string& what, std::size_t moved, const auto& work) {
    std::vector<double> shares;
    const cudaStream_t on = kit.stream().handle().order;
    for (std::size_t r = 0; r <= rounds; ++r) {
      const double copied = seconds_of(kit.stream(), calls, [&] {
        static_cast<void>(cudaMemcpyAsync(floats(3), floats(2), bytes, cudaMemcpyDeviceToDevice, on));
      });
      const double took = seconds_of(kit.stream(), calls, work);
      if (r > 0) shares.push_back(copied / static_cast<double>(2 * bytes) * static_cast<double>(moved) / took);
    }
    out.at_least("rows: " + what + ", of the speed of a copy", median(shares), 0.80);
  };
  const std::size_t all = rows * hidden;
  measure("norm", 6 * all, [&] {
    kit.teams(rows, k::rms_norm_rows<float, bf16, bf16>{floats(0), narrow(3), narrow(1), of_rows, hidden, 1e-5F});
  });
  measure("norm, backward", 16 * all, [&] {
    kit.teams(rows, k::rms_norm_rows_backward<float, float, float, float, bf16>{
                        floats(0), narrow(3), of_rows, floats(1), floats(2), hidden, floats(2)});
  });
  measure("gradient of a norm's weight", 8 * all, [&] {
    using term = k::rms_norm_weight_term<float>;
    kit.add_columns(k::column_sums<term, float>{{floats(0), of_rows, floats(1), hidden}, floats(3), rows, hidden});
  });
  measure("rotation", 6 * all, [&] {
    kit.teams(rows, k::rotated_rows<float, bf16>{floats(0), narrow(1), floats(2), floats(2), hidden, 1024, 12, 64});
  });
  measure("activation of experts", 6 * expert_rows * width, [&] {
    kit.teams(expert_rows, k::swiglu_rows<bf16, std::size_t>{narrow(0), narrow(1), used, width});
  });
  measure("activation of experts, backward", 12 * expert_rows * width, [&] {
    kit.teams(expert_rows, k::swiglu_rows_again_backward<bf16, std::size_t>{narrow(0), narrow(1), used, width});
  });
  measure("rows to experts", 6 * tokens * hidden, [&] {
    kit.teams(2 * tokens, belay::pushed_rows<bf16>{slots, narrow(0)});
  });
  measure("rows from experts", 8 * tokens * hidden, [&] {
    kit.teams(tokens, belay::pulled_rows<bf16, float>{slots, of_rows, floats(0)});
  });
  measure("rows of an embedding", 6 * all, [&] {
    kit.teams(rows, k::gather_rows<bf16, std::int32_t, float>{narrow(1), places, floats(0), hidden});
  });
  const std::size_t long_rows = all / vocabulary;
  kit.each(long_rows, k::fill<std::int32_t>{places, 7});
  measure("cross-entropy of " + std::to_string(vocabulary) + " columns", 8 * all, [&] {
    kit.teams(long_rows, k::cross_entropy_rows<float>{floats(0), places, losses, floats(1), vocabulary, 1.0});
  });
}

}  // namespace bench
