// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The element types of a safetensors file, with their names and their widths in bits. There are more of them than C++
// types can hold (core/dtype.hpp): a tensor of another type can still be listed and copied as bytes.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI {
namespace safetensors {

enum class stored_type : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64
};

struct stored_facts {
  stored_type type;
  std::string_view name;
  unsigned bits;
};

inline constexpr stored_facts stored_table[] = {
    {stored_type::boolean, "BOOL", 8},
    {stored_type::f4, "F4", 4},
    {stored_type::f6_e2m3, "F6_E2M3", 6},
    {stored_type::f6_e3m2, "F6_E3M2", 6},
    {stored_type::u8, "U8", 8},
    {stored_type::i8, "I8", 8},
    {stored_type::f8_e5m2, "F8_E5M2", 8},
    {stored_type::f8_e4m3, "F8_E4M3", 8},
    {stored_type::f8_e8m0, "F8_E8M0", 8},
    {stored_type::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {stored_type::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {stored_type::i16, "I16", 16},
    {stored_type::u16, "U16", 16},
    {stored_type::f16, "F16", 16},
    {stored_type::bf16, "BF16", 16},
    {stored_type::i32, "I32", 32},
    {stored_type::u32, "U32", 32},
    {stored_type::f32, "F32", 32},
    {stored_type::c64, "C64", 64},
    {stored_type::f64, "F64", 64},
    {stored_type::i64, "I64", 64},
    {stored_type::u64, "U64", 64},
};

[[nodiscard]] constexpr std::string_view name(stored_type type) noexcept {
  return stored_table[static_cast<std::size_t>(type)].name;
}
[[nodiscard]] constexpr unsigned bits(stored_type type) noexcept {
  return stored_table[static_cast<std::size_t>(type)].bits;
}

/// The element type called `name`, or null when the list has none.
[[nodiscard]] constexpr const stored_facts* find_stored_type(std::string_view name) noexcept {
  for (const stored_facts& facts : stored_table) {
    if (facts.name == name) return &facts;
  }
  return nullptr;
}

/// The type as which a C++ element type is stored, without conversion.
template <element T>
inline constexpr stored_type stored_as = find_stored_type(belay::name(dtype_of<T>))->type;

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI
