// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensors in 8 bits with one scale for every 128 elements (a block), as fp8 dispatch sends them. A block's largest
// magnitude maps to the largest fp8 value. A kernel's index is a block, so that its scale is computed and used by one
// thread or team.
//
//   const std::size_t blocks = belay::kernel::quantize_block_count(count);
//   belay::kernel::for_each_row(blocks, belay::kernel::quantize<float>{in, narrow, scales, count});
//   belay::kernel::for_each_row(blocks, belay::kernel::dequantize<float>{narrow, scales, out, count});
#pragma once

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

namespace belay::inline BELAY_ABI::kernel {

/// Values that share one scale.
inline constexpr std::size_t quantize_block = 128;

/// Blocks, and so scales, of a range; the last block may be shorter.
[[nodiscard]] BELAY_HD constexpr std::size_t quantize_block_count(std::size_t count) noexcept {
  return (count + quantize_block - 1) / quantize_block;
}

/// out[i] = in[i] / scales[block], rounded to `Narrow`. Run for `quantize_block_count(count)` indices. An infinity or a
/// NaN decodes to NaN.
template <real T, class Narrow = fp8_e4m3>
struct quantize {
  /// Values, where the narrow ones go, one scale a block, and how many values there are.
  const T* in;
  Narrow* out;
  float* scales;
  std::size_t count;

  /// One value of a block.
  struct element {
    /// out[i] = in[i] times the inverse scale, rounded and saturated.
    const T* in;
    Narrow* out;
    float inverse;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
      out[i] = Narrow(static_cast<float>(in[i]) * inverse, saturating);
    }

    /// Indices that `pack(i)` does at once, from i on: a warp has a block of float in one access.
    static constexpr std::size_t indices_of_pack = pack_size<T>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(in, out); }
    BELAY_HD void pack(std::size_t i) const noexcept {
      const auto from = load_pack<indices_of_pack>(in, i);
      pack_of<Narrow, indices_of_pack> to;
      run_pack<indices_of_pack>(element{from.of, to.of, inverse});
      store_pack(to, out, i);
    }
  };

  /// The scale of one block, and its values.
  BELAY_HD constexpr void operator()(std::size_t block) const noexcept { (*this)(solo{}, block); }
  /// By a team, to the same bits.
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t block) const noexcept {
    const std::size_t first = block * quantize_block;
    const std::size_t size = count - first < quantize_block ? count - first : quantize_block;
    constexpr auto largest = static_cast<float>(Narrow::largest_finite());
    const float scale = static_cast<float>(largest_magnitude(team, in + first, size)) / largest;
    // At least the smallest normal number, so that the inverse is finite, also for a block of zeros.
    const float used = scale > 0x1p-126f ? scale : 0x1p-126f;
    const float inverse = 1.0f / used;
    for_each_pack(team, size, element{in + first, out + first, inverse});
    if (team.lane == 0) scales[block] = used;
  }
};

/// out[i] = in[i] * scales[block]. Run for `quantize_block_count(count)` indices.
template <real T, class Narrow = fp8_e4m3>
struct dequantize {
  /// Narrow values, one scale a block, where the values go, and how many there are.
  const Narrow* in;
  const float* scales;
  T* out;
  std::size_t count;

  /// One value of a block.
  struct element {
    /// out[i] = in[i] times the scale.
    const Narrow* in;
    T* out;
    float scale;
    BELAY_HD constexpr void operator()(std::size_t i) const noexcept {
      out[i] = static_cast<T>(static_cast<float>(in[i]) * scale);
    }

    /// Indices that `pack(i)` does at once, from i on: a warp has a block of float in one access.
    static constexpr std::size_t indices_of_pack = pack_size<T>;
    [[nodiscard]] BELAY_HD bool packs() const noexcept { return are_packs<indices_of_pack>(in, out); }
    BELAY_HD void pack(std::size_t i) const noexcept {
      const auto from = load_pack<indices_of_pack>(in, i);
      pack_of<T, indices_of_pack> to;
      run_pack<indices_of_pack>(element{from.of, to.of, scale});
      store_pack(to, out, i);
    }
  };

  /// The values of one block.
  BELAY_HD constexpr void operator()(std::size_t block) const noexcept { (*this)(solo{}, block); }
  /// By a team, to the same bits.
  template <team Team>
  BELAY_HD constexpr void operator()(const Team& team, std::size_t block) const noexcept {
    const std::size_t first = block * quantize_block;
    const std::size_t size = count - first < quantize_block ? count - first : quantize_block;
    for_each_pack(team, size, element{in + first, out + first, scales[block]});
  }
};

}  // namespace belay::inline BELAY_ABI::kernel
