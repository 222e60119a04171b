// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Twelve settings of "Zero Bubble Pipeline Parallelism" (Qi et al., ICLR 2024): microseconds of one micro-batch, and
// bubbles, in ten-thousandths and as rates.
#pragma once

#include <cstddef>
#include <cstdint>

namespace test {

struct published_setting {
  std::size_t ranks, micro_batches;
  std::int64_t forward, input, weight, message;
  std::size_t layers;
  int f1b1, forgetful, interleaved, h1, h2, zb_v;  // `forgetful`: the interleaved schedule without wrap edges
  double zb_1p, zb_2p;                             // total with the memory of 1F1B; of a rank with twice that
  std::uint64_t hidden, heads;                     // of the model, which has sequences of 1024

  /// Bytes of a token and a layer: 34 h + 5 a s are kept for the input gradient, 32 h for the weight gradient.
  [[nodiscard]] constexpr std::uint64_t bytes_for_input() const { return 34 * hidden + 5 * heads * 1024; }
  [[nodiscard]] constexpr std::uint64_t bytes_for_weight() const { return 32 * hidden; }
};
inline constexpr published_setting published_settings[] = {
    {8, 24, 18522, 18086, 9337, 601, 24, 2431, 1055, 1090, 1585, 1083, 728, .1585, .0433, 2304, 24},
    {8, 32, 18513, 18086, 9331, 626, 24, 1985, 818, 847, 1242, 837, 563, .1242, .0039, 2304, 24},
    {8, 64, 18546, 18097, 9321, 762, 24, 1240, 443, 461, 674, 444, 307, .0674, .0026, 2304, 24},
    {8, 24, 29718, 29444, 19927, 527, 32, 2347, 808, 827, 1323, 698, 601, .1323, .0029, 4096, 32},
    {8, 32, 29802, 29428, 19530, 577, 32, 1898, 628, 644, 1045, 559, 466, .1045, .0022, 4096, 32},
    {8, 64, 29935, 29621, 19388, 535, 32, 1091, 320, 328, 554, 294, 236, .0554, .0010, 4096, 32},
    {16, 48, 11347, 11248, 8132, 377, 48, 2552, 1104, 1136, 1397, 672, 709, .1397, .0066, 5120, 40},
    {16, 64, 11307, 11254, 8101, 379, 48, 2082, 852, 878, 1088, 516, 542, .1088, .0054, 5120, 40},
    {16, 128, 11325, 11308, 8109, 378, 48, 1251, 445, 459, 576, 266, 278, .0576, .0028, 5120, 40},
    {32, 96, 10419, 10207, 7715, 408, 64, 2646, 1493, 1528, 1421, 641, 760, .1421, .0038, 6144, 48},
    {32, 128, 10408, 10204, 7703, 408, 64, 2168, 1164, 1192, 1106, 490, 581, .1106, .0029, 6144, 48},
    {32, 256, 10402, 10248, 7698, 460, 64, 1352, 624, 641, 594, 257, 309, .0594, .0018, 6144, 48},
};

}  // namespace test
