// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The products of `runtime_api`: by cuBLAS in fp32, fp64 and of bf16 and fp16, of other types by cuBLAS in fp32 with
// converted operands. For nvcc.
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "belay/backend/cuda/converted_product.hpp"
#include "belay/backend/cuda/device_api.hpp"
#include "belay/backend/cuda/element_products.hpp"
#include "belay/backend/cuda/launch.cuh"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/operand.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <class T>
concept half_precision = std::same_as<T, bf16> || std::same_as<T, fp16>;

/// Operands that cuBLAS multiplies as they are, with sums in float.
template <class C, class A, class B>
concept half_operands = half_precision<A> && std::same_as<A, B> && (std::same_as<C, A> || std::same_as<C, float>);

/// One handle, which is a stream's, and the memory beside operands that the stream's products use.
class product_handle {
 public:
  /// For cuBLAS: what NVIDIA recommends for sm_90; less is enough for others. For operands of different types: panels.
  static constexpr std::size_t library_bytes = std::size_t{32} << 20;
  static constexpr std::size_t panel_bytes = std::size_t{48} << 20;
  static constexpr std::size_t workspace_bytes = library_bytes + panel_bytes;

  explicit product_handle(cublasHandle_t with, float_products floats = float_products::exact) noexcept
      : with_(with), floats_(floats) {}

  [[nodiscard]] cublasHandle_t get() const noexcept { return with_; }
  [[nodiscard]] std::span<std::byte> panels() const noexcept { return panels_; }

  /// Of less than is asked for, cuBLAS gets what there is, and there are no panels.
  [[nodiscard]] cublasStatus_t use_workspace(std::span<std::byte> memory) noexcept {
    const bool all = memory.size() >= workspace_bytes;
    panels_ = all ? memory.subspan(library_bytes) : std::span<std::byte>();
    return cublasSetWorkspace(with_, memory.data(), all ? library_bytes : memory.size());
  }

  // A row-major matrix is the transpose of a column-major one, and the transpose of a product has its factors the
  // other way round.
  [[nodiscard]] cublasStatus_t product(const product_call<float>& call) const noexcept {
    if (floats_ == float_products::tf32) return extended(call, CUBLAS_COMPUTE_32F_FAST_TF32);
    const auto& [c, a, b, alpha, beta] = call;
    return cublasSgemm_64(with_, way(b.as), way(a.as), size(c.columns), size(c.rows), size(a.width()), &alpha, b.data,
                          size(b.stride), a.data, size(a.stride), &beta, c.data, size(c.stride));
  }
  [[nodiscard]] cublasStatus_t product(const product_call<double>& call) const noexcept {
    const auto& [c, a, b, alpha, beta] = call;
    return cublasDgemm_64(with_, way(b.as), way(a.as), size(c.columns), size(c.rows), size(a.width()), &alpha, b.data,
                          size(b.stride), a.data, size(a.stride), &beta, c.data, size(c.stride));
  }
  template <class C, half_precision A>
  requires half_operands<C, A, A>
  [[nodiscard]] cublasStatus_t product(const product_call<C, A, A>& call) const noexcept {
    return extended(call, CUBLAS_COMPUTE_32F);
  }

 private:
  // The pedantic mode of fp32 would keep the tensor cores out. Sums stay fp32, also those of parts.
  template <class C, class A>
  [[nodiscard]] cublasStatus_t extended(const product_call<C, A, A>& call, cublasComputeType_t compute) const noexcept {
    const auto& [c, a, b, alpha, beta] = call;
    constexpr auto exact_sums =
        static_cast<cublasMath_t>(static_cast<unsigned>(CUBLAS_DEFAULT_MATH) |
                                  static_cast<unsigned>(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    cublasStatus_t got = cublasSetMathMode(with_, exact_sums);
    if (got != CUBLAS_STATUS_SUCCESS) return got;
    got = cublasGemmEx_64(with_, way(b.as), way(a.as), size(c.columns), size(c.rows), size(a.width()), &alpha, b.data,
                          type_of<A>, size(b.stride), a.data, type_of<A>, size(a.stride), &beta, c.data, type_of<C>,
                          size(c.stride), compute, CUBLAS_GEMM_DEFAULT);
    const cublasStatus_t back = cublasSetMathMode(with_, CUBLAS_PEDANTIC_MATH);
    return got == CUBLAS_STATUS_SUCCESS ? back : got;
  }
  template <class T>
  static constexpr cudaDataType_t type_of = std::is_same_v<T, bf16>   ? CUDA_R_16BF
                                            : std::is_same_v<T, fp16> ? CUDA_R_16F
                                                                      : CUDA_R_32F;
  [[nodiscard]] static constexpr cublasOperation_t way(reading as) noexcept {
    return as == reading::as_is ? CUBLAS_OP_N : CUBLAS_OP_T;
  }
  [[nodiscard]] static constexpr std::int64_t size(std::size_t count) noexcept {
    return static_cast<std::int64_t>(count);
  }

  cublasHandle_t with_;
  float_products floats_;
  std::span<std::byte> panels_;
};

/// The `product_queue` of one stream, and what failed first.
struct queued_products {
  cudaStream_t order;
  const product_handle* by;
  cudaError_t launched = cudaSuccess;
  cublasStatus_t multiplied = CUBLAS_STATUS_SUCCESS;

  template <class F>
  [[nodiscard]] bool each(std::size_t count, const F& f) {
    launched = launch_each(order, count, f);
    return launched == cudaSuccess;
  }
  [[nodiscard]] bool product(const product_call<float>& call) {
    multiplied = by->product(call);
    return multiplied == CUBLAS_STATUS_SUCCESS;
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
