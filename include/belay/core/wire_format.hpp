// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What rows are while ranks send them: numbers as they are, or 8 bits each beside a scale for every block of a row. A
// format is a type, so that code which must not meet a narrow one does not compile with it; its layout is a value, for
// code that moves bytes.
//
//   static_assert(belay::mxfp8::layout.row_bytes(7168) == 7168 + 224);
//   template <belay::wire_format Wire>                       // belay::fp32_wire, bf16_wire, fp8_block<128>, mxfp8
//   void send_rows(const typename Wire::element_type* rows, const typename Wire::scale_type* scales);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI {

/// How a block is scaled. `none`: not at all. `ratio`: by a float, the block's largest magnitude over the largest
/// number of the elements' format. `power_of_two`: by the least power of two that is not below that ratio, a float.
/// `e8m0`: by the same power as a byte. Their numbers are part of a format's.
enum class scale_form : std::uint8_t { none, ratio, power_of_two, e8m0 };

/// A format as a value, and the bytes of its rows. `width` is how many elements a row has; its last block may be
/// shorter than the others.
struct wire_layout {
  /// The name, the type of an element, the form of a scale, and the elements that share one; 0 without scales.
  const char* name;
  dtype element;
  scale_form form = scale_form::none;
  std::uint16_t block = 0;

  /// Scales of a row, and the bytes of one.
  [[nodiscard]] BELAY_HD constexpr std::size_t scales(std::size_t width) const noexcept {
    return block == 0 ? 0 : width / block + (width % block == 0 ? 0 : 1);
  }
  [[nodiscard]] constexpr std::size_t bytes_of_scale() const noexcept {
    return form == scale_form::none ? 0 : form == scale_form::e8m0 ? sizeof(e8m0) : sizeof(float);
  }
  /// Bytes of a row: of its elements, of its scales, and of both.
  [[nodiscard]] constexpr std::size_t element_bytes(std::size_t width) const noexcept {
    return width * size_bytes(element);
  }
  [[nodiscard]] constexpr std::size_t scale_bytes(std::size_t width) const noexcept {
    return scales(width) * bytes_of_scale();
  }
  [[nodiscard]] constexpr std::size_t row_bytes(std::size_t width) const noexcept {
    return element_bytes(width) + scale_bytes(width);
  }

  /// Differs between any two formats, and is never 0: ranks that are to send each other rows compare it.
  [[nodiscard]] constexpr std::uint32_t number() const noexcept {
    return (static_cast<std::uint32_t>(block) << 16) | (static_cast<std::uint32_t>(form) << 8) |
           (static_cast<std::uint32_t>(element) + 1);
  }
};

/// A format of rows on the wire: the types of an element and of a scale (void without scales), and its layout.
template <class Wire>
concept wire_format = requires {
  typename Wire::element_type;
  typename Wire::scale_type;
  { Wire::layout } -> std::convertible_to<wire_layout>;
};
/// A format whose rows have scales.
template <class Wire>
concept scaled_wire = wire_format<Wire> && Wire::layout.form != scale_form::none;

/// Numbers as they are, rounded once if they were wider.
template <class T>
  requires std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, bf16> || std::same_as<T, fp16>
struct unscaled_wire {
  using element_type = T;
  using scale_type = void;
  /// Its layout.
  static constexpr wire_layout layout{std::same_as<T, double>  ? "fp64"
                                      : std::same_as<T, float> ? "fp32"
                                      : std::same_as<T, bf16>  ? "bf16"
                                                               : "fp16",
                                      dtype_of<T>};
};
using fp32_wire = unscaled_wire<float>;
using bf16_wire = unscaled_wire<bf16>;

/// E4M3 with a float for every 128 elements of a row, as fp8 dispatch of other systems has it. The form of the scale is
/// a part of the type: `scale_form::ratio`, or `scale_form::power_of_two`, by which numbers are scaled exactly.
template <std::size_t Block, scale_form Form = scale_form::ratio>
  requires(Block == 128 && (Form == scale_form::ratio || Form == scale_form::power_of_two))
struct fp8_block {
  using element_type = fp8_e4m3;
  using scale_type = float;
  /// Its layout.
  static constexpr wire_layout layout{Form == scale_form::ratio ? "fp8" : "fp8_pow2", dtype::f8_e4m3, Form, Block};
};

/// The microscaling format MXFP8 of OCP with E4M3: an E8M0 scale for every 32 elements of a row. The scale is rounded
/// up, so that no number of a block is beyond the largest of the format.
struct mxfp8 {
  using element_type = fp8_e4m3;
  using scale_type = e8m0;
  /// Its layout.
  static constexpr wire_layout layout{"mxfp8", dtype::f8_e4m3, scale_form::e8m0, 32};
};

}  // namespace belay::inline BELAY_ABI
