// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// 16 x 16 sums of products of bf16 by the tensor cores, for nvcc. Architectures from sm_80 on.
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <cuda_bf16.h>
#include <mma.h>

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// The `Fragment` of `fragment_tiles`, which all lanes of a warp call. Addresses are aligned to 32 bytes.
class wmma_fragment {
 public:
  wmma_fragment() = default;

  BELAY_HD void clear(unsigned) {
#if defined(__CUDA_ARCH__)
    nvcuda::wmma::fill_fragment(sums_, 0.0F);
#endif
  }
  BELAY_HD void add([[maybe_unused]] unsigned lane, [[maybe_unused]] const bf16* a,
                    [[maybe_unused]] std::size_t a_stride, [[maybe_unused]] const bf16* b,
                    [[maybe_unused]] std::size_t b_stride) {
#if defined(__CUDA_ARCH__)
    using namespace nvcuda::wmma;
    fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> left;
    fragment<matrix_b, 16, 16, 16, __nv_bfloat16, row_major> right;
    load_matrix_sync(left, reinterpret_cast<const __nv_bfloat16*>(a), static_cast<unsigned>(a_stride));
    load_matrix_sync(right, reinterpret_cast<const __nv_bfloat16*>(b), static_cast<unsigned>(b_stride));
    mma_sync(sums_, left, right, sums_);
#endif
  }
  BELAY_HD void store([[maybe_unused]] unsigned lane, [[maybe_unused]] float* to,
                      [[maybe_unused]] std::size_t stride) const {
#if defined(__CUDA_ARCH__)
    nvcuda::wmma::store_matrix_sync(to, sums_, static_cast<unsigned>(stride), nvcuda::wmma::mem_row_major);
#endif
  }

 private:
#if defined(__CUDA_ARCH__)
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> sums_;
#endif
};

}  // namespace belay::inline BELAY_ABI::cuda
