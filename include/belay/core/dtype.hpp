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

#include "belay/core/config.hpp"
#include "belay/core/dtype/compact_float.hpp"

namespace belay::inline BELAY_ABI {

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

static_assert(std::is_trivially_copyable_v<bf16> && sizeof(bf16) == 2 && sizeof(fp8_e4m3) == 1);

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
