// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The header of a safetensors file is JSON from outside. Its parser knows this one shape and nothing else: no
// recursion, no allocation that the bytes read so far do not justify, and every error names the byte. It is stricter
// than the format's reference implementation: unknown fields, repeated names and numbers that are not plain integers
// are refused. There are more element types than C++ types can hold (core/dtype.hpp): a tensor of another type can
// still be listed and copied as bytes.
// IWYU pragma: private, include "belay/train/safetensors.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/where.hpp"

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

inline constexpr std::uint64_t largest_header = 100'000'000;             // bytes
inline constexpr std::uint64_t largest_number = std::uint64_t{1} << 48;  // any number of a header
inline constexpr std::size_t largest_name = 4096;                        // bytes
inline constexpr std::size_t most_tensors = std::size_t{1} << 20;

/// One tensor of a file: bytes [begin, end) counted from the first byte after the header.
struct tensor {
  std::string name;
  stored_type type = stored_type::f32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return end - begin; }
  [[nodiscard]] std::uint64_t elements() const noexcept;
};

/// The order of `tensors` by name; find_tensor needs it.
[[nodiscard]] BELAY_DECL std::vector<std::size_t> order_by_name(const std::vector<tensor>& tensors);

/// The tensor called `name`, or null.
[[nodiscard]] BELAY_DECL const tensor* find_tensor(const std::vector<tensor>& tensors,
                                                   const std::vector<std::size_t>& by_name,
                                                   std::string_view name) noexcept;

/// Throws usage_error where `count` from `first` on go beyond the `all` elements or bytes, as `units` says, of a
/// tensor.
BELAY_DECL void expect_range(const tensor& of, std::string_view units, std::uint64_t first, std::uint64_t count,
                             std::uint64_t all, where at);

/// Free text about a file, as keys and values.
using metadata_list = std::vector<std::pair<std::string, std::string>>;

/// The content of a header: tensors in the order of their bytes, metadata in the order of the text.
struct header {
  std::vector<tensor> tensors;
  metadata_list metadata;
};

/// Computes the bytes of `shape` elements of `type`; false where they overflow or end inside of a byte.
[[nodiscard]] BELAY_DECL bool size_in_bytes(stored_type type, const std::vector<std::uint64_t>& shape,
                                            std::uint64_t& bytes) noexcept;

class header_scanner;

/// The header in `text`, or a file_error with the byte (counted from the beginning of the file) and the reason.
/// `Scanner` is like header_scanner. It is a template so that a program which reads no file does not compile it.
template <class Scanner = header_scanner>
[[nodiscard]] header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path,
                                  where at = where::current());

/// A tensor of a file that is to be written.
struct declaration {
  std::string name;
  stored_type type = stored_type::f32;
  std::vector<std::uint64_t> shape;
};

/// The metadata that other readers expect: {"format": "pt"}.
[[nodiscard]] BELAY_DECL metadata_list usual_metadata();

/// Where everything will lie in a file that is about to be written: the bytes of the header and the range of each
/// tensor, from the declarations alone. The same declarations always give the same bytes.
struct layout {
  std::string prefix;           // length and header, ready to be written at byte 0
  std::vector<tensor> tensors;  // in the order declared; bytes counted from the end of `prefix`
  std::uint64_t data_bytes = 0;

  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return prefix.size() + data_bytes; }
};

/// Places the declared tensors one after another, in their order. The header is padded with spaces, so that the data
/// begins at a multiple of 8. Tensors that a reader with that scanner would refuse are a usage_error.
template <class Scanner = header_scanner>
[[nodiscard]] layout lay_out(const std::vector<declaration>& tensors, const metadata_list& about,
                             where at = where::current());

}  // namespace safetensors
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/safetensors/header.ipp"  // IWYU pragma: export
#endif
