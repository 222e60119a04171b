// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tensor cores as the lanes of a warp use them together, and copies that a lane does not wait for. Lane l is of
// group l / 4 and has place l % 4 in it. All lanes of a warp make the calls with matrices alike.
//
//   unsigned a[4], b[4];
//   Unit::load(a, row_of_a);                          // 16 x 16 elements; b from the transpose of the right operand
//   Unit::load(b, row_of_b);
//   Unit::multiply(left_sums, a, b[0], b[1]);         // 16 x 8 sums
//   Unit::multiply(right_sums, a, b[2], b[3]);
//
// `tensor_warp` is that of a GPU, by the instructions mma.m16n8k16, ldmatrix and cp.async of PTX ISA 7.0 (sm_80 on).
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Two elements of bf16 in one register, the first in the lower half.
using bf16_pair = std::uint32_t;

/// `load(to, row)`: four matrices of 8 x 8 elements. Lane l gives the address of row l % 8 of matrix l / 8, in memory
/// of its block, aligned to 16 bytes. It gets of each matrix the elements (l / 4, 2 (l % 4)) and the one behind it.
/// `load_transposed` gives those of the transposed matrices.
///
/// `multiply(sums, a, b0, b1)` adds a product of 16 x 16 by 16 x 8. Lane l has of the left one rows l / 4 (a[0], a[2])
/// and l / 4 + 8 (a[1], a[3]), columns 2 (l % 4) and the next, and those 8 further (a[2], a[3]); of the right one
/// column l / 4, rows as the left's columns; of the sums rows l / 4 (0, 1) and l / 4 + 8 (2, 3), columns 2 (l % 4) and
/// the next.
///
/// `copy(to, from, count)` starts to copy 8 elements, of which those from `count` on are zeros, from memory of the
/// device to memory of the block, both aligned to 16 bytes; for a count of 0 it reads nothing. `close_group` ends a
/// group of such copies, `wait_but<N>` waits for all groups of this lane but the last N.
///
/// Memory of the block is given by its pointer, or by a `block_address`, which is made of it once, and to which
/// elements are added.
///
/// `store(to, pairs)` writes 8 elements, or those of one pair, to memory of the device that is aligned for them, `put`
/// 8 elements to memory of the block.
///
/// `from(l, x)` is the x that lane l of the warp gives. `rounded(x, y)` rounds two numbers to elements. `larger(x, y)`
/// is a number where one of them is. `power_of_two(x)` is 2^x within 2^-22 of itself, 0 below the normal range.
template <class U>
concept tensor_unit = requires(bf16_pair (&words)[4], const bf16_pair (&read)[4], float (&sums)[4], bf16* to,
                               const bf16* from, typename U::block_address place, unsigned count, float number) {
  { place + count } -> std::convertible_to<typename U::block_address>;
  requires std::convertible_to<bf16*, typename U::block_address>;
  U::load(words, from);
  U::load_transposed(words, from);
  U::load(words, place);
  U::load_transposed(words, place);
  U::copy(place, from, count);
  U::multiply(sums, read, read[0], read[1]);
  U::copy(to, from, count);
  U::close_group();
  U::template wait_but<1>();
  U::put(to, read);
  U::store(to, read);
  U::store(to, read[0]);
  { U::from(count, number) } -> std::same_as<float>;
  { U::rounded(number, number) } -> std::same_as<bf16_pair>;
  { U::larger(number, number) } -> std::same_as<float>;
  { U::power_of_two(number) } -> std::same_as<float>;
};

/// The `tensor_unit` of a GPU. For the host its functions do nothing: it compiles kernels and does not run them.
struct tensor_warp {
  /// An address in the memory of the block: 32 bits.
  class block_address {
   public:
    /// Of memory of the block.
    BELAY_HD block_address([[maybe_unused]] const bf16* memory) noexcept {
#if defined(__CUDA_ARCH__)
      byte_ = static_cast<unsigned>(__cvta_generic_to_shared(memory));
#endif
    }
    /// So many elements further.
    [[nodiscard]] BELAY_HD friend block_address operator+(block_address first, unsigned elements) noexcept {
      first.byte_ += 2 * elements;
      return first;
    }
    [[nodiscard]] BELAY_HD unsigned byte() const noexcept { return byte_; }

   private:
    unsigned byte_ = 0;
  };

  /// Loads of four matrices, as they lie or each transposed, and a product that is added to sums.
  BELAY_HD static void load([[maybe_unused]] bf16_pair (&to)[4], [[maybe_unused]] block_address row) noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row.byte())
                 : "memory");
#endif
  }
  BELAY_HD static void load_transposed([[maybe_unused]] bf16_pair (&to)[4],
                                       [[maybe_unused]] block_address row) noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row.byte())
                 : "memory");
#endif
  }
  BELAY_HD static void multiply([[maybe_unused]] float (&sums)[4], [[maybe_unused]] const bf16_pair (&a)[4],
                                [[maybe_unused]] bf16_pair b0, [[maybe_unused]] bf16_pair b1) noexcept {
#if defined(__CUDA_ARCH__)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
  }

  /// A copy of 16 bytes that is only started, the end of a group of them, and a wait for all groups but `Others`.
  BELAY_HD static void copy([[maybe_unused]] block_address to, [[maybe_unused]] const bf16* from,
                            [[maybe_unused]] unsigned count) noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(to.byte()), "l"(__cvta_generic_to_global(from)), "r"(2 * count)
                 : "memory");
#endif
  }
  BELAY_HD static void close_group() noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }
  template <int Others>
  BELAY_HD static void wait_but() noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Others) : "memory");
#endif
  }

  /// Writes of pairs, to memory of the block or of the device.
  BELAY_HD static void put([[maybe_unused]] block_address to, [[maybe_unused]] const bf16_pair (&from)[4]) noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(to.byte()), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
#endif
  }
  // Four stores of 32 bits is what is made of one in C++.
  BELAY_HD static void store([[maybe_unused]] bf16* to, [[maybe_unused]] const bf16_pair (&from)[4]) noexcept {
#if defined(__CUDA_ARCH__)
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
#endif
  }
  BELAY_HD static void store([[maybe_unused]] bf16* to, [[maybe_unused]] bf16_pair from) noexcept {
#if defined(__CUDA_ARCH__)
    *reinterpret_cast<bf16_pair*>(to) = from;
#endif
  }

  /// Numbers: that of another lane, two rounded to elements, the larger of two, and a power of two.
  [[nodiscard]] BELAY_HD static float from([[maybe_unused]] unsigned other, float value) noexcept {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(0xffffffffU, value, static_cast<int>(other));
#else
    return value;
#endif
  }
  [[nodiscard]] BELAY_HD static bf16_pair rounded([[maybe_unused]] float first,
                                                  [[maybe_unused]] float second) noexcept {
    bf16_pair out = 0;
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(second), "f"(first));
#endif
    return out;
  }
  [[nodiscard]] BELAY_HD static float larger(float x, [[maybe_unused]] float y) noexcept {
#if defined(__CUDA_ARCH__)
    return fmaxf(x, y);
#else
    return x;
#endif
  }
  [[nodiscard]] BELAY_HD static float power_of_two(float x) noexcept {
#if defined(__CUDA_ARCH__)
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
#endif
    return x;
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
