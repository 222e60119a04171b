// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Beside a reference that knows the 256 values of the format alone: the nearest of them, and of two that are equally
// near the one whose bits are even.
#include "belay/kernel/quantize.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "test_length.hpp"
#include "unit/kernel/support/lanes.hpp"

namespace {

using namespace belay;
using namespace belay::kernel;
using fp8 = fp8_block<128>;
using fp8_pow2 = fp8_block<128, scale_form::power_of_two>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr unsigned largest_bits = 0x7e, nan_bits = 0x7f;

// By the definition of the format: sign, 4 bits of exponent with bias 7, 3 of mantissa.
double value_of(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
  if ((bits & nan_bits) == nan_bits) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Distances are exact in double: both numbers are multiples of one power of two, and few bits apart.
unsigned nearest(double x) {
  const double size = std::abs(x);
  unsigned best = 0;
  for (unsigned bits = 1; bits <= largest_bits; ++bits) {
    const double here = std::abs(value_of(bits) - size), before = std::abs(value_of(best) - size);
    if (here < before || (here == before && bits % 2 == 0)) best = bits;
  }
  return best | (std::signbit(x) ? 0x80U : 0U);
}

template <class Wire, class T>
struct quantized_row {
  std::vector<typename Wire::element_type> elements;
  std::vector<typename Wire::scale_type> scales;
  std::vector<T> back;
  findings_record found;
};
template <class Wire, class T>
quantized_row<Wire, T> quantized(const std::vector<T>& x, std::size_t width) {
  const std::size_t rows = width == 0 ? 1 : x.size() / width;
  quantized_row<Wire, T> out;
  out.elements.resize(x.size());
  out.scales.resize(rows * Wire::layout.scales(width));
  out.back.resize(x.size());
  const findings_note note{&out.found, {}};
  for_each_row(rows, quantize_rows<Wire, T>{x.data(), out.elements.data(), out.scales.data(), width, note});
  for_each_row(rows, dequantize_rows<Wire, T>{out.elements.data(), out.scales.data(), out.back.data(), width});
  return out;
}

std::vector<float> random_row(std::size_t width, unsigned seed) {
  std::mt19937 bits(seed);
  std::vector<float> row(width);
  for (float& x : row) {
    const int exponent = static_cast<int>(bits() % 24) - 16;
    x = std::ldexp(static_cast<float>(bits()) * 0x1p-31F - 1, exponent);
  }
  return row;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// How far a number may lie from its copy.
double bound(double x, double scale) { return 0x1p-4 * std::abs(x) + 0x1p-10 * scale; }

}  // namespace

TEST_CASE("every number of bf16 goes to the nearest of 256, ties to even, and none of them to another sign") {
  // By a scale of 1: a block whose largest magnitude is 448.
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000; bits += 31) {
    std::vector<bf16> row(32, bf16(448.0F));
    for (unsigned i = 0; i < 31 && bits + i < 0x10000; ++i)
      row[i] = bf16::from_bits(static_cast<std::uint16_t>(bits + i));
    for (unsigned i = 0; i < 31; ++i)
      if (std::abs(static_cast<float>(row[i])) > 448) row[i] = bf16(0.0F);  // of a larger scale, below
    const auto got = quantized<mxfp8>(row, 32);
    for (std::size_t i = 0; i < 32; ++i) {
      const double x = static_cast<double>(row[i]);
      const unsigned want = std::isnan(x) ? nan_bits | (std::signbit(x) ? 0x80U : 0U) : nearest(x);
      wrong += got.scales[0].bits() != 127 || got.elements[i].bits() != want;
      wrong += !std::isnan(x) && static_cast<double>(got.back[i]) != value_of(want);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("every number of bf16 alone in a row is within the bound of its own scale, or NaN") {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const std::vector<bf16> row{bf16::from_bits(static_cast<std::uint16_t>(bits))};
    const auto check = [&]<class Wire>(Wire) {
      const auto got = quantized<Wire>(row, 1);
      const double x = static_cast<double>(row[0]), back = static_cast<double>(got.back[0]);
      const double scale = static_cast<double>(static_cast<float>(got.scales[0]));
      wrong += !std::isfinite(scale) || scale <= 0;
      wrong += std::signbit(x) != std::signbit(back);
      if (std::isfinite(x))
        wrong += !(std::abs(back - x) <= bound(x, scale)) || got.found.quantized_not_finite != 0;
      else
        wrong += !std::isnan(back) || got.found.quantized_not_finite != 1 ||
                 got.found.quantized_infinities != (std::isinf(x) ? 1U : 0U);
    };
    check(mxfp8{});
    check(fp8{});
    check(fp8_pow2{});
  }
  CHECK(wrong == 0);
}

TEST_CASE("all 256 elements come back as the format defines them, by every scale") {
  std::vector<fp8_e4m3> all(256);
  for (unsigned i = 0; i < 256; ++i) all[i] = fp8_e4m3::from_bits(static_cast<std::uint8_t>(i));
  int wrong = 0;
  for (unsigned s = 0; s < 256; ++s) {
    const std::vector<e8m0> scales(8, e8m0::from_bits(static_cast<std::uint8_t>(s)));
    std::vector<float> back(256);
    for_each_row(1, dequantize_rows<mxfp8, float>{all.data(), scales.data(), back.data(), 256});
    for (unsigned i = 0; i < 256; ++i) {
      const double want = s == 255 ? std::nan("") : std::ldexp(value_of(i), static_cast<int>(s) - 127);
      wrong += std::isnan(want) ? !std::isnan(back[i])
                                : static_cast<float>(want) != back[i] || std::signbit(want) != std::signbit(back[i]);
    }
  }
  CHECK(wrong == 0);
  const std::vector<float> halves{0.5F, 0.25F};
  std::vector<float> back(256);
  for_each_row(1, dequantize_rows<fp8, float>{all.data(), halves.data(), back.data(), 256});
  CHECK(back[largest_bits] == 224);
  CHECK(back[128 + largest_bits] == -112);
}

TEST_CASE("by a float scale too, each element is the nearest to the number times the inverse") {
  // 464 lies between 448 and what is not there: no scaled number comes so far.
  static_assert(fp8_e4m3(464.0F, saturating).bits() == largest_bits);
  int wrong = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<float> row = random_row(300, seed);
    const auto got = quantized<fp8>(row, 300);
    for (std::size_t i = 0; i < 300; ++i) {
      const std::size_t first = i / 128 * 128, end = std::min<std::size_t>(first + 128, 300);
      float largest = 1e-4F;
      for (std::size_t j = first; j < end; ++j) largest = std::max(largest, std::abs(row[j]));
      wrong += std::bit_cast<std::uint32_t>(got.scales[i / 128]) != std::bit_cast<std::uint32_t>(largest / 448.0F);
      wrong += got.elements[i].bits() != nearest(static_cast<double>(row[i] * (448.0F / largest)));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a scale that is rounded up lets no number of a block be beyond the largest") {
  int wrong = 0, reached = 0;
  for (int exponent = -133; exponent <= 127; ++exponent)
    for (int mantissa = 0; mantissa < 128; ++mantissa) {
      const float largest = std::ldexp(1.0F + static_cast<float>(mantissa) / 128, exponent);
      const std::vector<float> row{largest, largest / 3};
      const auto check = [&]<class Wire>(Wire, double least) {
        const auto got = quantized<Wire>(row, 2);
        const double scale = static_cast<double>(static_cast<float>(got.scales[0]));
        // The least power of two that leaves the largest magnitude at 448 or below.
        double want = std::ldexp(1.0, -127);
        while (448 * want < std::max<double>(static_cast<double>(largest), least)) want *= 2;
        wrong += scale != want;
        wrong += static_cast<double>(largest) / scale > 448;
        for (std::size_t i = 0; i < 2; ++i)
          wrong += !(std::abs(static_cast<double>(got.back[i]) - static_cast<double>(row[i])) <=
                     bound(static_cast<double>(row[i]), scale));
        reached += got.elements[0].bits() == largest_bits ? 1 : 0;
      };
      check(mxfp8{}, 0);
      check(fp8_pow2{}, 1e-4F);
    }
  CHECK(wrong == 0);
  CHECK(reached > 0);
}

TEST_CASE("blocks of zeros have a finite scale and zeros, and so have rows whose bytes were cleared") {
  const auto check = [&]<class Wire>(Wire) {
    std::vector<float> row(256, 0.0F);
    row[200] = -0.0F;
    const auto got = quantized<Wire>(row, 256);
    for (const auto& each : got.scales) CHECK(std::isfinite(static_cast<float>(each)));
    for (std::size_t i = 0; i < 256; ++i) CHECK((got.elements[i].bits() & nan_bits) == 0);
    CHECK(same_bits(got.back, row));
    const std::vector<fp8_e4m3> nothing(256, fp8_e4m3::from_bits(0));
    const std::vector<typename Wire::scale_type> none(Wire::layout.scales(256));
    std::vector<float> back(256, 1.0F);
    for_each_row(1, dequantize_rows<Wire, float>{nothing.data(), none.data(), back.data(), 256});
    for (const float x : back) CHECK(std::bit_cast<std::uint32_t>(x) == 0);
  };
  check(mxfp8{});
  check(fp8{});
  check(fp8_pow2{});
}

TEST_CASE("infinities and NaNs become NaN, are counted, and leave the rest of their block alone") {
  const auto check = [&]<class Wire>(Wire) {
    const std::vector<float> usual = random_row(300, 5);
    std::vector<float> row = usual;
    row[3] = infinity, row[70] = -infinity, row[299] = -std::nanf("");
    row.insert(row.end(), usual.begin(), usual.end());
    const auto got = quantized<Wire>(row, 300);
    CHECK(got.found.quantized_infinities == 2);
    CHECK(got.found.quantized_not_finite == 3);
    CHECK(got.found.first_not_finite.kind == finding_kind::row_not_finite);
    CHECK(got.found.first_not_finite.number == 0);
    std::vector<float> cleared = usual;
    cleared[3] = cleared[70] = cleared[299] = 0;
    const auto want = quantized<Wire>(cleared, 300);
    CHECK(want.found.quantized_not_finite == 0);
    for (std::size_t i = 0; i < 300; ++i)
      if (std::isfinite(row[i]))
        CHECK(got.elements[i] == want.elements[i]);
      else
        CHECK(got.elements[i].bits() == (std::signbit(row[i]) ? 0xff : 0x7f));
  };
  check(mxfp8{});
  check(fp8{});
  check(fp8_pow2{});
}

TEST_CASE_TEMPLATE("rows have the bits of one thread from a warp and from half of one, aligned for packs or not", T,
                   float, bf16) {
  using sizes = std::vector<std::size_t>;
  const sizes widths = threads_are_sanitized ? sizes{1, 33, 520} : sizes{0, 1, 15, 16, 31, 32, 33, 128, 129, 520, 1024};
  const auto check = [&]<class Wire>(Wire) {
    for (const std::size_t width : widths)
      for (const std::size_t away : {0U, 1U}) {
        CAPTURE(width);
        constexpr std::size_t rows = 2;
        alignas(16) T in[2 * 1024 + 1];
        alignas(16) fp8_e4m3 one[2 * 1024 + 1] = {}, many[2 * 1024 + 1] = {};
        const std::vector<float> values = random_row(std::size(in), static_cast<unsigned>(width));
        for (std::size_t i = 0; i < std::size(in); ++i) in[i] = static_cast<T>(values[i]);
        if (width > 40) in[40] = static_cast<T>(-std::nanf("")), in[17] = static_cast<T>(infinity);
        std::vector<typename Wire::scale_type> scales(rows * Wire::layout.scales(width) + 1), same = scales;
        findings_record found, also;
        for_each_row(rows, quantize_rows<Wire, T>{in + away, one + away, scales.data(), width, {&found, {}}});
        const quantize_rows<Wire, T> by_team{in + away, many + away, same.data(), width, {&also, {}}};
        const dequantize_rows<Wire, T> back{one + away, scales.data(), in + away, width};
        test::run_by_lanes<32>(rows, by_team);
        CHECK(std::memcmp(one, many, sizeof one) == 0);
        CHECK(same_bits(scales, same));
        CHECK(found.quantized_infinities == also.quantized_infinities);
        CHECK(found.quantized_not_finite == also.quantized_not_finite);
        std::memset(many, 0, sizeof many);
        test::run_by_lanes<16>(rows, by_team);
        CHECK(std::memcmp(one, many, sizeof one) == 0);
        CHECK(same_bits(scales, same));
        for_each_row(rows, back);
        std::vector<T> expected(in, in + std::size(in));
        std::fill(in + away, in + away + rows * width, T{});
        test::run_by_lanes<32>(rows, back);
        CHECK(std::memcmp(in, expected.data(), sizeof in) == 0);
      }
  };
  check(mxfp8{});
  check(fp8{});
  check(fp8_pow2{});
}

TEST_CASE("copies of a row have its bits wherever they lie, and numbers as they are stay so") {
  const std::vector<float> row = random_row(200, 9);
  const auto check = [&]<class Wire>(Wire) {
    std::vector<float> rows = random_row(3 * 200, 10);
    for (const std::size_t at : {0U, 2U}) std::copy(row.begin(), row.end(), rows.begin() + std::ptrdiff_t(at) * 200);
    const auto got = quantized<Wire>(rows, 200);
    const std::size_t scales = Wire::layout.scales(200);
    CHECK(std::memcmp(got.elements.data(), got.elements.data() + 2 * 200, 200) == 0);
    CHECK(std::memcmp(got.scales.data(), got.scales.data() + 2 * scales, scales * sizeof got.scales[0]) == 0);
    CHECK(same_bits(quantized<Wire>(row, 200).elements, {got.elements.begin(), got.elements.begin() + 200}));
    CHECK_FALSE(
        same_bits(quantized<Wire>(row, 200).elements, {got.elements.begin() + 200, got.elements.begin() + 400}));
  };
  check(mxfp8{});
  check(fp8{});
  check(fp8_pow2{});
  std::vector<float> copied(200);
  std::vector<bf16> rounded(200);
  for_each_row(1, quantize_rows<fp32_wire, float>{row.data(), copied.data(), nullptr, 200});
  CHECK(copied == row);
  test::run_by_lanes<32>(1, quantize_rows<bf16_wire, float>{row.data(), rounded.data(), nullptr, 200});
  for_each_row(1, dequantize_rows<bf16_wire, float>{rounded.data(), nullptr, copied.data(), 200});
  for (std::size_t i = 0; i < 200; ++i) CHECK(copied[i] == static_cast<float>(bf16(row[i])));
}

TEST_CASE("rows of random numbers stay within the bound of their blocks") {
  for (const std::size_t width : {1U, 31U, 100U, 4096U}) {
    const auto check = [&]<class Wire>(Wire) {
      const std::vector<float> row = random_row(width, static_cast<unsigned>(width));
      const auto got = quantized<Wire>(row, width);
      double worst = 0;
      for (std::size_t i = 0; i < width; ++i) {
        const double scale = static_cast<double>(static_cast<float>(got.scales[i / Wire::layout.block]));
        const double x = static_cast<double>(row[i]);
        worst = std::max(worst, std::abs(static_cast<double>(got.back[i]) - x) / bound(x, scale));
      }
      CHECK(worst <= 1);
      CHECK((width < 100 || worst > 0.8));  // a bound that nothing comes near would say little
    };
    check(mxfp8{});
    check(fp8{});
    check(fp8_pow2{});
  }
}
