// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Floating-point formats of 16 and 8 bits as storage: they are converted, never computed with. One template serves all
// of them, because they differ only in widths and in what the largest exponent means. Conversions to float are exact.
// Conversions from float round to nearest, ties to even. Both are branch-free arithmetic on the bits, so that a loop
// over them vectorises and gives the same result on host and device.
//
//   const belay::bf16 half(0.5F);              // rounds
//   const auto wide = static_cast<float>(half);
//   belay::fp8_e4m3(1e9F);                     // 448, the largest value
//   belay::fp8_e4m3(1e9F, belay::overflowing)  // NaN: e4m3 has no infinity
// IWYU pragma: private, include "belay/core/dtype.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The meaning of the all-ones exponent. `ieee`: infinities and NaNs, as in IEEE 754. `nan_only`: ordinary numbers, but
/// for the all-ones pattern, which is NaN (the OCP "fn" formats; they have no infinity).
enum class special_values { ieee, nan_only };

/// Tags for values beyond the largest finite one. `saturating`: they become the largest. `overflowing`: they become
/// infinity, or NaN in a format without infinity.
struct saturating_t {};
struct overflowing_t {};
inline constexpr saturating_t saturating{};
inline constexpr overflowing_t overflowing{};

/// A float of 1 + ExponentBits + MantissaBits bits. Plain data; zero when value-initialised.
template <int ExponentBits, int MantissaBits, special_values Special>
class compact_float {
 public:
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  using bits_type = std::conditional_t<1 + ExponentBits + MantissaBits == 8, std::uint8_t, std::uint16_t>;

  compact_float() = default;

  /// Rounds `x`. Formats of 16 bits overflow to infinity, as in every language. Formats of 8 bits saturate, because
  /// values are scaled to their small range first. NaN stays NaN.
  BELAY_HD explicit constexpr compact_float(float x) noexcept : bits_(round(x, default_overflow)) {}
  /// Rounds `x`; what is too large, infinity included, becomes the largest finite value.
  BELAY_HD constexpr compact_float(float x, saturating_t) noexcept : bits_(round(x, largest)) {}
  /// Rounds `x`; what is too large becomes infinity, or NaN where there is none.
  BELAY_HD constexpr compact_float(float x, overflowing_t) noexcept : bits_(round(x, beyond_largest)) {}

  [[nodiscard]] BELAY_HD static constexpr compact_float from_bits(bits_type bits) noexcept {
    compact_float value{};
    value.bits_ = bits;
    return value;
  }
  [[nodiscard]] BELAY_HD constexpr bits_type bits() const noexcept { return bits_; }

  /// The value as float: exact, subnormals and infinities included; a NaN stays a NaN.
  [[nodiscard]] BELAY_HD explicit constexpr operator float() const noexcept {
    if constexpr (has_float_range) return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits_) << shift);
    const std::uint32_t magnitude = bits_ & magnitude_mask;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits_ >> (exponent_bits + mantissa_bits)) << 31;
    // The largest exponent keeps its meaning only if it is moved to float's largest exponent.
    const std::uint32_t special = (0xffu << 23) | ((magnitude & mantissa_mask) << shift);
    const std::uint32_t normal = (magnitude << shift) + rebias;
    const std::uint32_t subnormal =
        __builtin_bit_cast(std::uint32_t, static_cast<float>(static_cast<std::int32_t>(magnitude)) * smallest);
    std::uint32_t result = select(magnitude < smallest_normal, subnormal, normal);
    result = select(magnitude >= first_special, special, result);
    return __builtin_bit_cast(float, result | sign);
  }
  [[nodiscard]] BELAY_HD explicit constexpr operator double() const noexcept {
    return static_cast<double>(static_cast<float>(*this));
  }

  /// Compares values, as floats do: both zeros are equal, NaN is not equal to itself.
  [[nodiscard]] BELAY_HD friend constexpr bool operator==(compact_float a, compact_float b) noexcept {
    const std::uint32_t x = a.bits_ & magnitude_mask, y = b.bits_ & magnitude_mask;
    return ((a.bits_ == b.bits_) & (x <= last_number)) | ((x | y) == 0);
  }

  [[nodiscard]] BELAY_HD static constexpr compact_float largest_finite() noexcept {
    return from_bits(static_cast<bits_type>(largest));
  }

 private:
  static constexpr int shift = 23 - MantissaBits;
  static constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  static constexpr bool has_float_range = bias == 127;
  static constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << 23;
  static constexpr std::uint32_t mantissa_mask = (1u << MantissaBits) - 1;
  static constexpr std::uint32_t magnitude_mask = (1u << (ExponentBits + MantissaBits)) - 1;
  static constexpr std::uint32_t smallest_normal = 1u << MantissaBits;
  static constexpr std::uint32_t infinity = magnitude_mask - mantissa_mask;  // its pattern where it exists
  static constexpr std::uint32_t first_special = Special == special_values::ieee ? infinity : magnitude_mask;
  static constexpr std::uint32_t last_number = Special == special_values::ieee ? infinity : magnitude_mask - 1;
  static constexpr std::uint32_t largest = first_special - 1;
  static constexpr std::uint32_t beyond_largest = first_special;
  static constexpr std::uint32_t quiet_nan =
      Special == special_values::ieee ? infinity | (1u << (MantissaBits - 1)) : magnitude_mask;
  static constexpr std::uint32_t default_overflow = sizeof(bits_type) == 1 ? largest : beyond_largest;

  // 2^(1 - bias - MantissaBits), the smallest subnormal, and the float whose unit in the last place is
  // that: adding it makes the adder itself round a value below the normal range.
  static constexpr float smallest =
      has_float_range ? 0.0f : __builtin_bit_cast(float, static_cast<std::uint32_t>(128 - bias - MantissaBits) << 23);
  static constexpr std::uint32_t aligner_bits = static_cast<std::uint32_t>(128 - bias - MantissaBits + 23) << 23;

  // Without a branch, which would keep a loop from being vectorised.
  [[nodiscard]] BELAY_HD static constexpr std::uint32_t select(bool condition, std::uint32_t a,
                                                               std::uint32_t b) noexcept {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
    return (a & mask) | (b & ~mask);
  }

  // A call would keep a loop over conversions from being vectorised.
  [[nodiscard, gnu::always_inline]] BELAY_HD static constexpr bits_type round(float x,
                                                                              std::uint32_t overflow) noexcept {
    const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t a = u & 0x7fffffffu;
    std::uint32_t result = (a + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1u)) >> shift;
    if constexpr (!has_float_range) {
      const float aligned = __builtin_bit_cast(float, a) + __builtin_bit_cast(float, aligner_bits);
      const std::uint32_t subnormal = __builtin_bit_cast(std::uint32_t, aligned) - aligner_bits;
      result = select(a < rebias + (1u << 23), subnormal, result - (rebias >> shift));
    }
    result = select((a < (0xffu << 23)) & (result < first_special), result, overflow);
    result = select(a > (0xffu << 23), quiet_nan, result);
    return static_cast<bits_type>(result | ((u >> 31) << (exponent_bits + mantissa_bits)));
  }

  bits_type bits_;
};

/// The type in which elements of T are computed and summed: float for formats of 16 and 8 bits, else T itself.
template <class T>
struct compute_type {
  using type = T;
};
template <int ExponentBits, int MantissaBits, special_values Special>
struct compute_type<compact_float<ExponentBits, MantissaBits, Special>> {
  using type = float;
};
template <class T>
using compute_type_t = typename compute_type<T>::type;

}  // namespace belay::inline BELAY_ABI
