// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/core/finite.hpp"

#include <doctest/doctest.h>

#include <cstdint>

#include "belay/core/bounds.hpp"
#include "belay/core/dtype.hpp"

namespace {

using namespace belay;

static_assert(is_finite(1.0F) && is_finite(-largest_value<double>) && !is_finite(infinite<double>));
static_assert(!is_nan(infinite<float>) && is_nan(no_number<float>) && is_nan(-no_number<double>));
static_assert(floating_number<bf16> && floating_number<fp8_e4m3> && !floating_number<int>);

// Of all numbers of a format those are not finite whose exponent is all ones; or, where there is no infinity, one
// alone.
template <class T>
void check_all(unsigned exponent, unsigned mantissa, bool has_infinity) {
  for (unsigned bits = 0; bits < 1U << (8 * sizeof(T)); ++bits) {
    const T x = T::from_bits(static_cast<typename T::bits_type>(bits));
    const bool top = (bits & exponent) == exponent, all = (bits & mantissa) == mantissa;
    const bool nan = top && (has_infinity ? (bits & mantissa) != 0 : all);
    const bool right = is_finite(x) == !(has_infinity ? top : nan) && is_nan(x) == nan;
    if (!right) FAIL_CHECK(bits);
  }
}

}  // namespace

TEST_CASE("every number of the narrow formats is what its bits say") {
  check_all<bf16>(0x7f80, 0x7f, true);
  check_all<fp16>(0x7c00, 0x3ff, true);
  check_all<fp8_e5m2>(0x7c, 3, true);
  check_all<fp8_e4m3>(0x78, 7, false);
}

TEST_CASE_TEMPLATE("subnormal and largest numbers are finite, what is beyond is not", T, float, double) {
  T x = largest_value<T>;
  CHECK((is_finite(x) && is_finite(-x) && is_finite(T(0)) && is_finite(x * T(0))));
  CHECK((!is_finite(x * 2) && !is_nan(x * 2)));
  CHECK((is_nan(x * 2 - x * 2) && is_nan(no_number<T>) && !is_nan(x)));
}
