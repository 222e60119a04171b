// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/kernel/quantize.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

#include "unit/kernel/support/lanes.hpp"

namespace {

using namespace belay;
using namespace belay::kernel;

template <class Narrow, class T>
std::vector<T> round_trip(const std::vector<T>& in, std::vector<float>& scales) {
  std::vector<Narrow> narrow(in.size());
  std::vector<T> out(in.size());
  scales.assign(quantize_block_count(in.size()), -1.0f);
  for_each_row(scales.size(), quantize<T, Narrow>{in.data(), narrow.data(), scales.data(), in.size()});
  for_each_row(scales.size(), dequantize<T, Narrow>{narrow.data(), scales.data(), out.data(), in.size()});
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("values survive fp8 with a scale a block to the format's precision", T, float, double) {
  for (const std::size_t n : {0u, 1u, 127u, 128u, 129u, 1000u}) {
    std::vector<T> in(n);
    for (std::size_t i = 0; i < n; ++i) {
      in[i] = static_cast<T>(std::sin(0.9 * double(i)) * std::pow(10.0, double(i / 128) * 3 - 9));
    }
    std::vector<float> scales;
    const auto out = round_trip<fp8_e4m3>(in, scales);
    for (std::size_t i = 0; i < n; ++i) {
      // Half a unit of a 3-bit mantissa, or of the smallest subnormal, 2^-9.
      const double bound =
          std::max(std::abs(static_cast<double>(in[i])) / 15.5, double(scales[i / 128]) * 0x1p-10 * 1.001);
      CHECK(std::abs(static_cast<double>(out[i]) - static_cast<double>(in[i])) <= bound);
    }
  }
}

TEST_CASE("the largest magnitude of a block is represented exactly up to rounding of its scale") {
  std::vector<float> in(256, 0.25f), scales;
  in[3] = -896.0f;
  in[200] = 448.0f;
  const auto out = round_trip<fp8_e4m3>(in, scales);
  CHECK(out[3] == -896.0f);
  CHECK(out[200] == 448.0f);
  CHECK(scales[0] == 2.0f);
  CHECK(scales[1] == 1.0f);
}

TEST_CASE("blocks of zeros and of the smallest numbers stay finite") {
  std::vector<float> in(256, 0.0f), scales;
  for (std::size_t i = 128; i < 256; ++i) in[i] = std::numeric_limits<float>::denorm_min();
  const auto out = round_trip<fp8_e4m3>(in, scales);
  for (std::size_t i = 0; i < 256; ++i) CHECK(std::abs(out[i] - in[i]) <= 0x1p-126f * 0x1p-10f);
}

TEST_CASE("an infinity or a NaN is still visible after the round trip, and leaves other blocks alone") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> in(256, 1.0f), scales;
    in[7] = bad;
    const auto out = round_trip<fp8_e5m2>(in, scales);
    CHECK_FALSE(std::isfinite(out[7]));
    CHECK(out[200] == 1.0f);
  }
}

TEST_CASE_TEMPLATE("a block has the same bits from one thread and from a warp, aligned for packs or not", T, float,
                   double) {
  constexpr std::size_t most = 300;
  alignas(16) T in[most + 1], one[most + 1] = {}, many[most + 1] = {};
  alignas(16) fp8_e4m3 narrow[most + 1] = {}, same_narrow[most + 1] = {};
  for (std::size_t i = 0; i <= most; ++i) in[i] = static_cast<T>(std::sin(0.7 * double(i) + 1) * (i < 200 ? 3 : 1e-6));
  in[140] = std::numeric_limits<T>::quiet_NaN();
  for (const std::size_t n : {std::size_t{1}, std::size_t{127}, std::size_t{128}, std::size_t{131}, most})
    for (const std::size_t unaligned : {0u, 1u}) {
      CAPTURE(n);
      float scales[3] = {}, same_scales[3] = {};
      const std::size_t blocks = quantize_block_count(n);
      for_each_row(blocks, quantize<T>{in + unaligned, narrow + unaligned, scales, n});
      test::run_by_lanes<32>(blocks, quantize<T>{in + unaligned, same_narrow + unaligned, same_scales, n});
      CHECK(std::equal(scales, scales + 3, same_scales));
      CHECK(std::memcmp(narrow, same_narrow, sizeof narrow) == 0);
      for_each_row(blocks, dequantize<T>{narrow + unaligned, scales, one + unaligned, n});
      test::run_by_lanes<32>(blocks, dequantize<T>{narrow + unaligned, scales, many + unaligned, n});
      CHECK(std::memcmp(one, many, sizeof one) == 0);
      CHECK(one[unaligned] != 0);
    }
}
