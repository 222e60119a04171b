// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/dtype.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

namespace {

using namespace belay;

// The values of a format by the definition, written apart from the code under test.
template <class F>
double defined_value(unsigned bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
  const unsigned exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const double sign = (bits >> (mantissa_bits + exponent_bits)) != 0 ? -1 : 1;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const bool top = exponent == (1u << exponent_bits) - 1;
  if (has_infinity && top) return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (!has_infinity && top && mantissa == (1u << mantissa_bits) - 1) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits), static_cast<int>(exponent) - bias - mantissa_bits);
}

template <class F>
void check_every_pattern(bool has_infinity) {
  int wrong = 0;
  for (unsigned bits = 0; bits < (1u << (8 * sizeof(F))); ++bits) {
    const auto value = F::from_bits(static_cast<typename F::bits_type>(bits));
    const double want = defined_value<F>(bits, F::exponent_bits, F::mantissa_bits, has_infinity);
    const auto got = static_cast<float>(value);
    if (std::isnan(want)) {
      wrong += !std::isnan(got) || !std::isnan(static_cast<float>(F(got)));
      wrong += std::signbit(got) != std::signbit(static_cast<float>(F(got)));
    } else {
      wrong += static_cast<double>(got) != want || std::signbit(got) != std::signbit(want);
      wrong += F(got, overflowing).bits() != bits;
    }
  }
  CHECK(wrong == 0);
}

// Between two neighbours of the format: the midpoint goes to the even one, its float neighbours to the nearer one.
template <class F>
void check_every_boundary() {
  int wrong = 0;
  for (unsigned bits = 0; bits < F::largest_finite().bits(); ++bits) {
    const auto low = F::from_bits(static_cast<typename F::bits_type>(bits));
    const auto high = F::from_bits(static_cast<typename F::bits_type>(bits + 1));
    const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2;
    const auto tie = static_cast<float>(middle);
    REQUIRE(static_cast<double>(tie) == middle);
    const float below = std::nextafter(tie, 0.0f);
    const float above = std::nextafter(tie, std::numeric_limits<float>::infinity());
    const auto even = (bits & 1u) == 0 ? low : high;
    wrong += F(tie).bits() != even.bits();
    wrong += F(-tie).bits() != F(-static_cast<float>(even)).bits();
    wrong += below > static_cast<float>(low) && F(below).bits() != low.bits();
    wrong += above < static_cast<float>(high) && F(above).bits() != high.bits();
    wrong += F(std::nextafter(static_cast<float>(high), 0.0f)).bits() != high.bits();
    wrong += F(std::nextafter(static_cast<float>(high), std::numeric_limits<float>::infinity())).bits() != high.bits();
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every pattern of every compact format has its defined value and survives the round trip") {
  check_every_pattern<bf16>(true);
  check_every_pattern<fp16>(true);
  check_every_pattern<fp8_e4m3>(false);
  check_every_pattern<fp8_e5m2>(true);
}

TEST_CASE("rounding is to nearest, ties to even, at every boundary between two values") {
  check_every_boundary<bf16>();
  check_every_boundary<fp16>();
  check_every_boundary<fp8_e4m3>();
  check_every_boundary<fp8_e5m2>();
}

TEST_CASE("values too large overflow or saturate as asked") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(static_cast<float>(fp8_e4m3::largest_finite()) == 448.0f);
  CHECK(static_cast<float>(fp8_e5m2::largest_finite()) == 57344.0f);
  CHECK(static_cast<float>(fp16::largest_finite()) == 65504.0f);

  CHECK(static_cast<float>(fp8_e4m3(464.0f, overflowing)) == 448.0f);  // the tie above 448 goes to the even pattern
  CHECK(std::isnan(static_cast<float>(fp8_e4m3(std::nextafter(464.0f, inf), overflowing))));
  CHECK(std::isnan(static_cast<float>(fp8_e4m3(inf, overflowing))));
  CHECK(static_cast<float>(fp8_e4m3(1e9f)) == 448.0f);
  CHECK(static_cast<float>(fp8_e4m3(-inf, saturating)) == -448.0f);

  CHECK(static_cast<float>(fp8_e5m2(std::nextafter(61440.0f, 0.0f), overflowing)) == 57344.0f);
  CHECK(static_cast<float>(fp8_e5m2(61440.0f, overflowing)) == inf);
  CHECK(static_cast<float>(fp8_e5m2(inf)) == 57344.0f);

  CHECK(static_cast<float>(fp16(65519.0f)) == 65504.0f);
  CHECK(static_cast<float>(fp16(65520.0f)) == inf);
  CHECK(static_cast<float>(fp16(-1e6f, saturating)) == -65504.0f);
  CHECK(static_cast<float>(bf16(std::numeric_limits<float>::max())) == inf);
  CHECK(static_cast<float>(bf16(-inf)) == -inf);
  CHECK(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(static_cast<float>(fp8_e4m3(std::nanf(""), saturating))));
}

TEST_CASE("what is below half of the smallest value becomes zero and keeps its sign") {
  CHECK(fp16(std::ldexp(1.0f, -25)).bits() == 0);  // the tie with zero, which is even
  CHECK(fp16(std::nextafter(std::ldexp(1.0f, -25), 1.0f)).bits() == 1);
  CHECK(fp8_e4m3(-std::numeric_limits<float>::denorm_min()).bits() == 0x80);
  CHECK(bf16(-0.0f).bits() == 0x8000);
  CHECK(bf16(0.0f) == bf16(-0.0f));
}

TEST_CASE("conversions are constant expressions") {
  static_assert(static_cast<float>(bf16(1.00390625f)) == 1.0f);
  static_assert(static_cast<float>(fp16(0x1p-24f)) == 0x1p-24f);
  static_assert(static_cast<float>(fp8_e4m3(0x1p-9f)) == 0x1p-9f);
  static_assert(fp8_e5m2(1.0f).bits() == 0x3c);
}

TEST_CASE("dtypes know their size and their safetensors name") {
  for (std::size_t i = 0; i < dtype_count; ++i) {
    const auto type = static_cast<dtype>(i);
    CHECK(dtype_named(name(type)) == type);
    CHECK(size_bytes(type) > 0);
  }
  CHECK(std::string_view(name(dtype_of<fp8_e4m3>)) == "F8_E4M3");
  CHECK(std::string_view(name(dtype_of<bf16>)) == "BF16");
  CHECK(size_bytes(dtype_of<fp16>) == sizeof(fp16));
  CHECK(size_bytes(dtype_of<double>) == sizeof(double));
  CHECK_FALSE(dtype_named("f32").has_value());
  CHECK_FALSE(dtype_named("").has_value());
  static_assert(element<std::int32_t> && element<const float> == false && !element<char*>);
}
