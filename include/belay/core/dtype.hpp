// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The element types of tensors as values, which can be stored, printed and compared, and the mapping from C++ types to
// them. Names are those of the safetensors format.
//
//   static_assert(belay::dtype_of<float> == belay::dtype::f32);
//   std::puts(belay::name(belay::dtype::bf16));       // BF16
//   const auto type = belay::dtype_named("F8_E4M3");  // std::optional<belay::dtype>
//   template <belay::element T>                       // any type that tensors can have
//   void save(std::span<const T> values);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The meaning of the all-ones exponent. `ieee`: infinities and NaNs, as in IEEE 754. `nan_only`: ordinary numbers, but
/// for the all-ones pattern, which is NaN (the OCP "fn" formats; they have no infinity).
enum class special_values { ieee, nan_only };

/// Tags for values beyond the largest finite one. `saturating`: they become the largest. `overflowing`: they become
/// infinity, or NaN in a format without infinity.
struct saturating_t {};
/// Floating-point formats of 16 and 8 bits as storage: they are converted, never computed with. One template serves all
/// of them, because they differ only in widths and in what the largest exponent means. Conversions to float are exact.
/// Conversions from float round to nearest, ties to even. Both are branch-free arithmetic on the bits, so that a loop
/// over them vectorises and gives the same result on host and device.
struct overflowing_t {};
inline constexpr saturating_t saturating{};
inline constexpr overflowing_t overflowing{};

/// A float of 1 + ExponentBits + MantissaBits bits. Plain data; zero when value-initialised.
template <int ExponentBits, int MantissaBits, special_values Special>
class compact_float {
 public:
  /// Bits of the format beside its sign.
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

  /// The number that `bits` are.
  [[nodiscard]] BELAY_HD static constexpr compact_float from_bits(bits_type bits) noexcept {
    compact_float value{};
    value.bits_ = bits;
    return value;
  }
  /// The bits of the number.
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

  /// The largest number that is finite.
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

/// A scale of 8 bits, the E8M0 of the OCP microscaling formats: 2^(bits - 127), or NaN where all bits are set. It has
/// no sign and no zero. Plain data; 2^-127 when value-initialised.
class e8m0 {
 public:
  using bits_type = std::uint8_t;

  e8m0() = default;

  /// The scale that `bits` are.
  [[nodiscard]] BELAY_HD static constexpr e8m0 from_bits(bits_type bits) noexcept {
    e8m0 scale{};
    scale.bits_ = bits;
    return scale;
  }
  /// The bits of the scale.
  [[nodiscard]] BELAY_HD constexpr bits_type bits() const noexcept { return bits_; }
  [[nodiscard]] BELAY_HD constexpr bool is_nan() const noexcept { return bits_ == nan_bits; }

  /// The value as float: exact, 2^-127 too, which is subnormal there.
  [[nodiscard]] BELAY_HD explicit constexpr operator float() const noexcept {
    const std::uint32_t normal = static_cast<std::uint32_t>(bits_) << 23;
    return __builtin_bit_cast(float, bits_ == 0 ? 1u << 22 : is_nan() ? 0x7fc00000u : normal);
  }

  /// Compares bits: a NaN is equal to itself.
  [[nodiscard]] BELAY_HD friend constexpr bool operator==(e8m0 a, e8m0 b) noexcept { return a.bits_ == b.bits_; }

 private:
  static constexpr bits_type nan_bits = 0xff;

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

/// Element types of tensors, named as in safetensors files, the narrow ones included.
enum class dtype : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f8_e4m3,
  f8_e5m2,
  f16,
  bf16,
  f32,
  f64
};

/// How many there are.
inline constexpr std::size_t dtype_count = 15;

// After the enumeration: otherwise g++ warns that its enumerators shadow these names.
using bf16 = compact_float<8, 7, special_values::ieee>;
using fp16 = compact_float<5, 10, special_values::ieee>;
using fp8_e4m3 = compact_float<4, 3, special_values::nan_only>;  // OCP e4m3fn: largest 448
using fp8_e5m2 = compact_float<5, 2, special_values::ieee>;      // largest 57344

static_assert(std::is_trivially_copyable_v<bf16> && sizeof(bf16) == 2 && sizeof(fp8_e4m3) == 1 && sizeof(e8m0) == 1);

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_bytes(dtype type) noexcept {
  switch (type) {
    case dtype::boolean:
    case dtype::u8:
    case dtype::i8:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2: return 1;
    case dtype::u16:
    case dtype::i16:
    case dtype::f16:
    case dtype::bf16: return 2;
    case dtype::u32:
    case dtype::i32:
    case dtype::f32: return 4;
    case dtype::u64:
    case dtype::i64:
    case dtype::f64: return 8;
  }
  return 0;
}

/// The name in a safetensors header.
[[nodiscard]] constexpr const char* name(dtype type) noexcept {
  switch (type) {
    case dtype::boolean: return "BOOL";
    case dtype::u8: return "U8";
    case dtype::i8: return "I8";
    case dtype::u16: return "U16";
    case dtype::i16: return "I16";
    case dtype::u32: return "U32";
    case dtype::i32: return "I32";
    case dtype::u64: return "U64";
    case dtype::i64: return "I64";
    case dtype::f8_e4m3: return "F8_E4M3";
    case dtype::f8_e5m2: return "F8_E5M2";
    case dtype::f16: return "F16";
    case dtype::bf16: return "BF16";
    case dtype::f32: return "F32";
    case dtype::f64: return "F64";
  }
  return "unknown";
}

/// The type with that safetensors name; nothing if Belay does not know it.
[[nodiscard]] constexpr std::optional<dtype> dtype_named(std::string_view text) noexcept {
  for (std::size_t i = 0; i < dtype_count; ++i) {
    const auto type = static_cast<dtype>(i);
    if (text == name(type)) return type;
  }
  return std::nullopt;
}

// The mapping itself; any other type has no entry, and `dtype_of` of it does not compile.
template <class T>
struct dtype_entry {};
/// The dtype of an element's type.
template <dtype Value>
struct dtype_entry_of {
  /// The dtype.
  static constexpr dtype value = Value;
};
template <>
struct dtype_entry<bool> : dtype_entry_of<dtype::boolean> {};
template <>
struct dtype_entry<std::uint8_t> : dtype_entry_of<dtype::u8> {};
template <>
struct dtype_entry<std::int8_t> : dtype_entry_of<dtype::i8> {};
template <>
struct dtype_entry<std::uint16_t> : dtype_entry_of<dtype::u16> {};
template <>
struct dtype_entry<std::int16_t> : dtype_entry_of<dtype::i16> {};
template <>
struct dtype_entry<std::uint32_t> : dtype_entry_of<dtype::u32> {};
template <>
struct dtype_entry<std::int32_t> : dtype_entry_of<dtype::i32> {};
template <>
struct dtype_entry<std::uint64_t> : dtype_entry_of<dtype::u64> {};
template <>
struct dtype_entry<std::int64_t> : dtype_entry_of<dtype::i64> {};
template <>
struct dtype_entry<fp8_e4m3> : dtype_entry_of<dtype::f8_e4m3> {};
template <>
struct dtype_entry<fp8_e5m2> : dtype_entry_of<dtype::f8_e5m2> {};
template <>
struct dtype_entry<fp16> : dtype_entry_of<dtype::f16> {};
template <>
struct dtype_entry<bf16> : dtype_entry_of<dtype::bf16> {};
template <>
struct dtype_entry<float> : dtype_entry_of<dtype::f32> {};
template <>
struct dtype_entry<double> : dtype_entry_of<dtype::f64> {};

/// A type that tensors can be made of.
template <class T>
concept element = requires {
  { dtype_entry<T>::value } -> std::convertible_to<dtype>;
};

/// The dtype of a C++ element type.
template <element T>
inline constexpr dtype dtype_of = dtype_entry<T>::value;

}  // namespace belay::inline BELAY_ABI
