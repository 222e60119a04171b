// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rows to the format of a wire and back, a row a team: elements of 8 bits, and a scale for every block of a row. The
// scale is that of the block's largest finite magnitude. An infinity becomes a NaN, as a NaN does, is noted, and leaves
// its block alone. The bits depend on the values only: not on the team, on addresses, or on the processor.
//
//   using wire = belay::mxfp8;
//   const std::size_t scales = wire::layout.scales(width);  // of a row
//   belay::kernel::for_each_row(rows, belay::kernel::quantize_rows<wire, belay::bf16>{x, narrow, scale, width});
//   belay::kernel::for_each_row(rows, belay::kernel::dequantize_rows<wire, belay::bf16>{narrow, scale, x, width});
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/wire_format.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/math.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Magnitudes of a block of which the largest is less are scaled as if it were this one; formats with an E8M0 scale
/// have a scale for every number.
inline constexpr float least_block_magnitude = 1e-4F;

/// The scale of a block of E4M3, and what elements are multiplied by and bounded to when they are rounded.
template <scale_form Form>
struct block_scale {
  /// The scale as it is stored; its inverse; the bits of the largest magnitude that an element may have.
  std::conditional_t<Form == scale_form::e8m0, e8m0, float> stored;
  float inverse;
  std::int32_t most;

  /// Of a block whose largest magnitude has the bits `largest`, those of a finite float.
  // 448 is 1.75 * 2^8: the exponent is that of `largest` less 8, and one more where its mantissa is beyond 1.75.
  [[nodiscard]] BELAY_HD static constexpr block_scale of(std::uint32_t largest) noexcept {
    constexpr std::int32_t all = 0x7e;
    constexpr std::uint32_t beyond_float = 247;
    constexpr auto most_of_format = static_cast<float>(fp8_e4m3::largest_finite());
    constexpr std::uint32_t least =
        Form == scale_form::e8m0 ? 0 : __builtin_bit_cast(std::uint32_t, least_block_magnitude);
    const std::uint32_t used = greater_of(largest, least);
    if constexpr (Form == scale_form::ratio) {
      const float magnitude = __builtin_bit_cast(float, used);
      return {magnitude / most_of_format, most_of_format / magnitude, all};
    } else {
      const std::uint32_t exponent = (used >> 23) + ((used & 0x7fffffu) > 0x600000u ? 1u : 0u);
      const std::uint32_t biased = exponent < 8 ? 0 : exponent - 8;
      const float inverse = __builtin_bit_cast(float, (254 - biased) << 23);
      // 256 times the largest scale would be infinite: there 240 is the largest element.
      const std::int32_t bound = biased == beyond_float ? all - 7 : all;
      if constexpr (Form == scale_form::e8m0)
        return {e8m0::from_bits(static_cast<std::uint8_t>(biased)), inverse, bound};
      else
        return {__builtin_bit_cast(float, biased << 23), inverse, bound};
    }
  }
};

/// Numbers that rows of a format are made of: where it has scales, those that are computed with as float.
template <class T, class Wire>
concept quantizable_to = stored_real<T> &&(!scaled_wire<Wire> || std::same_as<compute_type_t<T>, float>);

/// Numbers that are not finite, counted.
struct not_finite_count {
  /// How many are infinite, and how many are infinite or NaN.
  std::uint64_t infinities = 0;
  std::uint64_t all = 0;
};

/// The bits of a number's magnitude as float: those of finite ones are below `infinity_bits`, and in order.
template <class T>
[[nodiscard]] BELAY_HD constexpr std::uint32_t magnitude_of_float(const T& x) noexcept {
  return __builtin_bit_cast(std::uint32_t, static_cast<float>(x)) & 0x7fffffffu;
}

/// Elements of a block, each times the inverse scale, rounded to E4M3.
template <class T>
struct quantized_elements {
  /// out[i] = in[i] times the inverse; NaN of its sign where in[i] is not finite.
  const T* in;
  fp8_e4m3* out;
  float inverse;
  std::int32_t most;
  // A number between 2^e and 2^(e + 1) has units of 2^(e - 3), and below 2^-6 of 2^-9: what is added to it has such a
  // unit in its last place, so that the adder rounds. (Fewer operations than a conversion, which must take any float.)
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    constexpr std::int32_t power_bits = 0x7f800000, least_normal = 121 << 23, to_last_place = 20 << 23;
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(in[i]));
    const std::uint32_t size = bits & 0x7fffffffu;
    // The mask keeps the multiplication and the addition two: fused, they would round once.
    const auto scaled = static_cast<std::int32_t>(
        __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, size) * inverse) & 0x7fffffffu);
    const std::int32_t own = scaled & power_bits, power = own < least_normal ? least_normal : own;
    const std::uint32_t aligner = static_cast<std::uint32_t>(power) + to_last_place;
    const std::uint32_t units =
        __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, scaled) + __builtin_bit_cast(float, aligner)) -
        aligner;
    const std::int32_t rounded = ((power - least_normal) >> 20) + static_cast<std::int32_t>(units);
    const auto bounded = static_cast<std::uint32_t>(rounded < most ? rounded : most);
    const std::uint32_t element = blend(mask_of_sign(size - infinity_bits<float>), bounded, 0x7fu);
    out[i] = fp8_e4m3::from_bits(static_cast<std::uint8_t>(element | ((bits >> 24) & 0x80u)));
  }
};

/// Elements of a block, each times its scale.
template <class T>
struct dequantized_elements {
  /// out[i] = in[i] times the scale; NaN of its sign where one of them is not finite.
  const fp8_e4m3* in;
  T* out;
  float scale;
  BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
    constexpr std::uint32_t smallest_normal = 8, least_normal = 121u << 23;
    const std::uint32_t sign = static_cast<std::uint32_t>(in[i].bits() & 0x80u) << 24;
    const std::uint32_t magnitude = in[i].bits() & 0x7fu;
    const std::uint32_t normal = (magnitude << 20) + (120u << 23);
    // Below 2^-6, the least number that is normal: as a part of it, without subnormal floats, which may be flushed.
    const std::uint32_t subnormal = __builtin_bit_cast(
        std::uint32_t, __builtin_bit_cast(float, normal + (1u << 23)) - __builtin_bit_cast(float, least_normal));
    const std::uint32_t own = blend(mask_of_sign(magnitude - smallest_normal), subnormal, normal);
    const std::uint32_t value = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, own) * scale);
    const std::uint32_t finite =
        mask_of_sign(magnitude - 0x7fu) & mask_of_sign(magnitude_of_float(scale) - infinity_bits<float>);
    out[i] = static_cast<T>(__builtin_bit_cast(float, blend(finite, value, 0x7fc00000u) | sign));
  }
};

/// Rows of numbers in the format of a wire: elements [rows, width] and scales [rows, Wire::layout.scales(width)].
/// Without scales they are copied, and rounded if the format is narrower. An index is a row.
template <wire_format Wire, quantizable_to<Wire> T>
struct quantize_rows {
  /// The numbers, where elements and scales go, the elements of a row, and where infinities and NaNs are noted.
  const T* in;
  typename Wire::element_type* out;
  typename Wire::scale_type* scales;
  std::size_t width;
  findings_note found = {};

  /// Row `row`, by one thread or a team: the same bits.
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    const T* const x = in + row * width;
    auto* const narrow = out + row * width;
    if constexpr (!scaled_wire<Wire>) {
      for_each_pack(team, width, copy<T, typename Wire::element_type>{x, narrow});
    } else {
      constexpr wire_layout layout = Wire::layout;
      auto* const scale = scales + row * layout.scales(width);
      not_finite_count others;
      if constexpr (Team::lanes == 1)
        others = by_thread(x, narrow, scale);
      else
        others = by_lanes(team, x, narrow, scale);
      if (others.all > 0) [[unlikely]]
        found.add_quantized(others.infinities, others.all, row);
    }
  }

 private:
  using scale_of = block_scale<Wire::layout.form>;
  static constexpr std::size_t block = Wire::layout.block;
  // A lane's part of a row: 16 bytes of elements.
  static constexpr std::size_t pack = 16;

  // The largest magnitude that is finite; others are counted.
  [[nodiscard]] BELAY_HD static constexpr std::uint32_t largest_finite(const T* x, std::size_t count,
                                                                       not_finite_count& others) noexcept {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint32_t size = magnitude_of_float(x[i]);
      if (size < infinity_bits<float>)
        largest = size < largest ? largest : size;
      else
        ++others.all, others.infinities += size == infinity_bits<float> ? 1U : 0U;
    }
    return largest;
  }

  // In sixteen lanes, for the sake of vectors: a maximum has no order.
  [[nodiscard]] BELAY_HD static constexpr std::uint32_t largest_of(const T* x, std::size_t count) noexcept {
    std::int32_t lane[sum_lanes] = {};
    const std::size_t whole = count - count % sum_lanes;
    for (std::size_t i = 0; i < whole; i += sum_lanes) {
      for (std::size_t l = 0; l < sum_lanes; ++l) {
        const auto size = static_cast<std::int32_t>(magnitude_of_float(x[i + l]));
        lane[l] = size > lane[l] ? size : lane[l];
      }
    }
    for (std::size_t i = whole; i < count; ++i) {
      const auto size = static_cast<std::int32_t>(magnitude_of_float(x[i]));
      lane[0] = size > lane[0] ? size : lane[0];
    }
    std::int32_t largest = 0;
    for (std::size_t l = 0; l < sum_lanes; ++l) largest = lane[l] > largest ? lane[l] : largest;
    return static_cast<std::uint32_t>(largest);
  }

  [[nodiscard]] BELAY_HD constexpr not_finite_count by_thread(const T* x, fp8_e4m3* narrow,
                                                              typename Wire::scale_type* scale) const noexcept {
    not_finite_count others;
    for (std::size_t first = 0; first < width; first += block, ++scale) {
      const std::size_t count = width - first < block ? width - first : block;
      std::uint32_t largest = largest_of(x + first, count);
      if (largest >= infinity_bits<float>) [[unlikely]]
        largest = largest_finite(x + first, count, others);
      const scale_of by = scale_of::of(largest);
      for_each_index(count, quantized_elements<T>{x + first, narrow + first, by.inverse, by.most});
      *scale = by.stored;
    }
    return others;
  }

  // Each lane has a pack, and a block is that of some lanes beside each other.
  template <team Team>
  [[nodiscard]] BELAY_HD not_finite_count by_lanes(const Team& team, const T* x, fp8_e4m3* narrow,
                                                   typename Wire::scale_type* scale) const noexcept {
    constexpr unsigned lanes_of_block = block / pack;
    not_finite_count others;
    const bool packs = by_packs(team, width >= pack && are_packs<pack>(x, narrow));
    for (std::size_t first = 0; first < width; first += Team::lanes * pack) {
      const std::size_t at = first + team.lane * pack;
      const std::size_t count = at >= width ? 0 : width - at < pack ? width - at : pack;
      pack_of<T, pack> own = {};
      if (packs && count == pack)
        own = load_pack<pack>(x, at);
      else
        run_pack<pack>([&](std::size_t i) {
          if (i < count) own.of[i] = x[at + i];
        });
      std::uint32_t largest = 0;
      run_pack<pack>([&](std::size_t i) {
        const std::uint32_t size = magnitude_of_float(own.of[i]);
        largest = size < largest ? largest : size;
      });
      if (largest >= infinity_bits<float>) [[unlikely]] {
        largest = 0;
        run_pack<pack>([&](std::size_t i) {
          const std::uint32_t size = magnitude_of_float(own.of[i]);
          const bool finite = size < infinity_bits<float>;
          others.all += finite ? 0U : 1U;
          others.infinities += size == infinity_bits<float> ? 1U : 0U;
          largest = finite && size > largest ? size : largest;
        });
      }
      for (unsigned away = 1; away < lanes_of_block; away *= 2) {
        const std::uint32_t other = team.from(team.lane ^ away, largest);
        largest = other > largest ? other : largest;
      }
      const scale_of by = scale_of::of(largest);
      pack_of<fp8_e4m3, pack> rounded;
      run_pack<pack>(quantized_elements<T>{own.of, rounded.of, by.inverse, by.most});
      if (packs && count == pack)
        store_pack(rounded, narrow, at);
      else
        run_pack<pack>([&](std::size_t i) {
          if (i < count) narrow[at + i] = rounded.of[i];
        });
      if (count > 0 && team.lane % lanes_of_block == 0) scale[at / block] = by.stored;
    }
    team.synchronize();
    return others;
  }
};

/// Rows of numbers of what `quantize_rows` has written. Rows whose bytes are all 0, as of slots that were cleared, are
/// zeros in every format. An index is a row.
template <wire_format Wire, quantizable_to<Wire> T>
struct dequantize_rows {
  /// Elements and scales, where the numbers go, and the elements of a row.
  const typename Wire::element_type* in;
  const typename Wire::scale_type* scales;
  T* out;
  std::size_t width;

  /// Row `row`, by one thread or a team: the same bits.
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t row) const noexcept {
    const auto* const narrow = in + row * width;
    T* const x = out + row * width;
    if constexpr (!scaled_wire<Wire>) {
      for_each_pack(team, width, copy<typename Wire::element_type, T>{narrow, x});
    } else {
      constexpr wire_layout layout = Wire::layout;
      const auto* const scale = scales + row * layout.scales(width);
      if constexpr (Team::lanes == 1)
        by_thread(narrow, scale, x);
      else
        by_lanes(team, narrow, scale, x);
    }
  }

 private:
  static constexpr std::size_t block = Wire::layout.block;
  static constexpr std::size_t pack = 16;

  BELAY_HD constexpr void by_thread(const fp8_e4m3* narrow, const typename Wire::scale_type* scale,
                                    T* x) const noexcept {
    for (std::size_t first = 0; first < width; first += block, ++scale) {
      const std::size_t count = width - first < block ? width - first : block;
      for_each_index(count, dequantized_elements<T>{narrow + first, x + first, static_cast<float>(*scale)});
    }
  }

  template <team Team>
  BELAY_HD void by_lanes(const Team& team, const fp8_e4m3* narrow, const typename Wire::scale_type* scale,
                         T* x) const noexcept {
    const bool packs = by_packs(team, width >= pack && are_packs<pack>(x, narrow));
    for (std::size_t at = team.lane * pack; at < width; at += Team::lanes * pack) {
      const std::size_t count = width - at < pack ? width - at : pack;
      const auto by = static_cast<float>(scale[at / block]);
      pack_of<fp8_e4m3, pack> own = {};
      pack_of<T, pack> wide;
      if (packs && count == pack)
        own = load_pack<pack>(narrow, at);
      else
        run_pack<pack>([&](std::size_t i) {
          if (i < count) own.of[i] = narrow[at + i];
        });
      run_pack<pack>(dequantized_elements<T>{own.of, wide.of, by});
      if (packs && count == pack)
        store_pack(wide, x, at);
      else
        run_pack<pack>([&](std::size_t i) {
          if (i < count) x[at + i] = wide.of[i];
        });
    }
    team.synchronize();
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
