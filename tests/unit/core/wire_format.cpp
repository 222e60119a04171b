// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/wire_format.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace {

using namespace belay;
using fp8 = fp8_block<128>;
using fp8_pow2 = fp8_block<128, scale_form::power_of_two>;

// Bytes for a token of DeepSeek-V3; 33/64 of bf16 for every width that blocks divide.
static_assert(bf16_wire::layout.row_bytes(7168) == 14'336 && fp32_wire::layout.row_bytes(7168) == 28'672);
static_assert(fp8::layout.row_bytes(7168) == 7'392 && mxfp8::layout.row_bytes(7168) == 7'392);
static_assert([] {
  for (std::size_t width = 0; width <= 8192; width += 32)
    if (64 * mxfp8::layout.row_bytes(width) != 33 * bf16_wire::layout.row_bytes(width)) return false;
  return true;
}());

template <class Wire>
concept blocked_by_another_size = requires {
  typename fp8_block<Wire::layout.block>;
};

}  // namespace

TEST_CASE("the last block of a row has a scale of its own, and an empty row has none") {
  CHECK(mxfp8::layout.scales(0) == 0);
  CHECK(mxfp8::layout.scales(1) == 1);
  CHECK(mxfp8::layout.row_bytes(31) == 32);
  CHECK(mxfp8::layout.row_bytes(32) == 33);
  CHECK(mxfp8::layout.row_bytes(33) == 35);
  CHECK(fp8::layout.scale_bytes(128) == 4);
  CHECK(fp8::layout.scale_bytes(129) == 8);
  CHECK(bf16_wire::layout.scale_bytes(129) == 0);
}

TEST_CASE("every format has a name and a number of its own") {
  const wire_layout all[] = {fp32_wire::layout,          bf16_wire::layout, fp8::layout,
                             fp8_pow2::layout,           mxfp8::layout,     unscaled_wire<double>::layout,
                             unscaled_wire<fp16>::layout};
  std::set<std::string> names;
  std::set<std::uint32_t> numbers{0};
  for (const wire_layout& each : all) {
    names.insert(each.name);
    numbers.insert(each.number());
  }
  CHECK(names.size() == std::size(all));
  CHECK(numbers.size() == std::size(all) + 1);
}

TEST_CASE("a format is a type: code that asks for one does not compile with another") {
  static_assert(wire_format<fp32_wire> && wire_format<bf16_wire> && wire_format<fp8> && wire_format<mxfp8>);
  static_assert(scaled_wire<fp8> && scaled_wire<fp8_pow2> && scaled_wire<mxfp8> && !scaled_wire<bf16_wire>);
  static_assert(!wire_format<float> && !wire_format<fp8_e4m3>);
  static_assert(blocked_by_another_size<fp8> && !blocked_by_another_size<mxfp8>);
}

TEST_CASE("a scale of 8 bits is a power of two, the smallest too, and NaN where all bits are set") {
  static_assert(static_cast<float>(e8m0::from_bits(127)) == 1.0F);
  for (unsigned bits = 0; bits < 255; ++bits)
    CHECK(static_cast<double>(static_cast<float>(e8m0::from_bits(static_cast<std::uint8_t>(bits)))) ==
          std::ldexp(1.0, static_cast<int>(bits) - 127));
  CHECK(std::isnan(static_cast<float>(e8m0::from_bits(255))));
  CHECK(e8m0::from_bits(255).is_nan());
  CHECK_FALSE(e8m0::from_bits(254).is_nan());
}
