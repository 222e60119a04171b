// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Forward and backward of a causal attention with fewer heads of keys than of queries, by whatever a kit attends with.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/library_attention.hpp"
#include "belay/core/operand.hpp"
#include "cuda/figures.hpp"

namespace bench {

inline constexpr std::size_t attention_sequences = 2;

/// Tokens of a sequence: of a run that is to be quick, few.
[[nodiscard]] inline std::size_t attention_length(bool whole) { return whole ? 2048 : 256; }
[[nodiscard]] inline belay::cuda::attention_extent attention_extent_of(std::size_t length) {
  return {{16, 4, 128, length}, attention_sequences * length};
}

/// Seconds, medians.
struct attention_times {
  double forward = 0;
  double backward = 0;
};

template <class T, class Api, class Kit>
attention_times measure_attention(const char* type, const belay::cuda::device<Api>& gpu, Kit& kit, std::size_t rounds,
                                  std::size_t length, figures& out) {
  const auto [sizes, rows] = attention_extent_of(length);
  const std::size_t wide = sizes.heads * sizes.head_size, narrow = sizes.kv_heads * sizes.head_size;
  const belay::cuda::device_memory<Api> memory(
      gpu, rows * (3 * wide + 4 * narrow) * 4 + rows * sizes.heads * 4 + rows * wide * 8);
  std::byte* next = memory.data();
  const auto rows_of = [&, height = rows]<class N>(N*, std::size_t width) {
    const belay::view<N, 2> made{reinterpret_cast<N*>(next), {height, width}};
    next += height * width * sizeof(N);
    return made;
  };
  using number = belay::compute_type_t<T>;
  const auto q = rows_of(static_cast<T*>(nullptr), wide), k = rows_of(static_cast<T*>(nullptr), narrow),
             v = rows_of(static_cast<T*>(nullptr), narrow), o = rows_of(static_cast<T*>(nullptr), wide);
  const auto d_o = rows_of(static_cast<number*>(nullptr), wide), dq = rows_of(static_cast<number*>(nullptr), wide),
             dk = rows_of(static_cast<number*>(nullptr), narrow), dv = rows_of(static_cast<number*>(nullptr), narrow);
  auto* const sums = reinterpret_cast<number*>(next);
  const belay::attention_call<T> forward{sizes, q, k, v, o, sums};
  const belay::attention_gradient_call<T> backward{sizes, q, k, v, o, sums, d_o, dq, dk, dv};
  std::vector<double> there, back;
  for (std::size_t r = 0; r <= rounds; ++r) {
    const double f = seconds_of(kit.stream(), 4, [&] { kit.attention(forward); });
    const double b = seconds_of(kit.stream(), 4, [&] { kit.attention(backward); });
    if (r > 0) there.push_back(f), back.push_back(b);
  }
  const attention_times found{median(there), median(back)};
  const double operations = 2.0 * static_cast<double>(attention_sequences * sizes.heads * sizes.head_size) *
                            static_cast<double>(length) * static_cast<double>(length);  // half of the scores
  const std::string name = std::string("attention of ") + type + ", " + std::to_string(attention_sequences) + " x " +
                           std::to_string(sizes.heads) + " heads of " + std::to_string(sizes.head_size) + " (" +
                           std::to_string(sizes.kv_heads) + " of keys), " + std::to_string(length) + " long: ";
  out.told(name + "forward", 1e3 * found.forward, "ms");
  out.told(name + "forward", 1e-12 * operations / found.forward, "TFLOP/s");
  out.told(name + "backward", 1e3 * found.backward, "ms");
  out.told(name + "backward", 2.5e-12 * operations / found.backward, "TFLOP/s");
  return found;
}

}  // namespace bench
