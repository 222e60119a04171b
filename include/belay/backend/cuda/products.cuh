// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The products of `runtime_api`: of bf16 and fp16 by cuBLASLt, with the algorithm that the kit has taken of its
// answers; in fp32 and fp64 by cuBLAS; of other types by cuBLAS in fp32 with converted operands. For nvcc.
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "belay/backend/cuda/converted_product.hpp"
#include "belay/backend/cuda/device_api.hpp"
#include "belay/backend/cuda/element_products.hpp"
#include "belay/backend/cuda/launch.cuh"
#include "belay/backend/cuda/library_choices.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/operand.hpp"

namespace belay::inline BELAY_ABI::cuda {

template <class T>
concept half_precision = std::same_as<T, bf16> || std::same_as<T, fp16>;

/// Operands that cuBLASLt multiplies as they are, with sums in float.
template <class C, class A, class B>
concept half_operands = half_precision<A> && std::same_as<A, B> && (std::same_as<C, A> || std::same_as<C, float>);

/// An algorithm of cuBLASLt for one problem, and the workspace that it uses.
struct product_algorithm {
  cublasLtMatmulAlgo_t how{};
  std::size_t workspace_bytes = 0;
};

/// A product in cuBLASLt's terms, made without allocating anything. A row-major matrix is the transpose of a
/// column-major one, and the transpose of a product has its factors the other way round: b comes first.
class described_product {
 public:
  explicit described_product(const product_problem& of) noexcept {
    const auto as = [](reading way) { return way == reading::as_is ? CUBLAS_OP_N : CUBLAS_OP_T; };
    const cublasOperation_t first = as(of.b_as), second = as(of.a_as);
    note(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    note(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    note(cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    const bool b_turned = first == CUBLAS_OP_T, a_turned = second == CUBLAS_OP_T;
    note(cublasLtMatrixLayoutInit(&b, type(of.factors), b_turned ? of.depth : of.columns,
                                  b_turned ? of.columns : of.depth, stride(of.b_stride)));
    note(cublasLtMatrixLayoutInit(&a, type(of.factors), a_turned ? of.rows : of.depth, a_turned ? of.depth : of.rows,
                                  stride(of.a_stride)));
    note(cublasLtMatrixLayoutInit(&c, type(of.result), of.columns, of.rows, stride(of.c_stride)));
  }

  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  /// The first that has failed.
  cublasStatus_t made = CUBLAS_STATUS_SUCCESS;

 private:
  void note(cublasStatus_t got) noexcept {
    if (made == CUBLAS_STATUS_SUCCESS) made = got;
  }
  [[nodiscard]] static constexpr cudaDataType_t type(dtype of) noexcept {
    return of == dtype::bf16 ? CUDA_R_16BF : of == dtype::f16 ? CUDA_R_16F : CUDA_R_32F;
  }
  [[nodiscard]] static constexpr std::int64_t stride(std::size_t elements) noexcept {
    return static_cast<std::int64_t>(elements);
  }
};

/// A hash of all that the library tells of an algorithm, and of the library's version. A number that it does not tell
/// is none.
[[nodiscard]] inline std::uint64_t word_of(const cublasLtMatmulAlgo_t& how) noexcept {
  fnv1a all;
  all.add(cublasLtGetVersion());
  for (const cublasLtMatmulAlgoConfigAttributes_t each :
       {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
        CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
        CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
        CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID}) {
    const bool is_short = each == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || each == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    std::uint32_t value = 0;
    std::uint16_t half = 0;
    std::size_t written = 0;
    void* const to = is_short ? static_cast<void*>(&half) : &value;
    const cublasStatus_t got = cublasLtMatmulAlgoConfigGetAttribute(&how, each, to, is_short ? 2 : 4, &written);
    all.add(got == CUBLAS_STATUS_SUCCESS ? (std::uint64_t{half} | value) : ~std::uint64_t{0});
  }
  return all.value();
}

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
    room_ = all ? memory.first(library_bytes) : memory;
    return cublasSetWorkspace(with_, room_.data(), room_.size());
  }
  /// The part of it that the library has.
  [[nodiscard]] std::size_t room() const noexcept { return room_.size(); }

  /// The answers of cuBLASLt's heuristic for that room, fastest first. Sums of parts are float, and are added by a
  /// kernel of their own: in the result's place they would be rounded, and counted by atomics.
  [[nodiscard]] cublasStatus_t algorithms(const product_problem& of,
                                          std::span<library_answer<product_algorithm>> answers,
                                          std::size_t& count) const noexcept {
    count = 0;
    described_product how(of);
    if (how.made != CUBLAS_STATUS_SUCCESS) return how.made;
    cublasLtMatmulPreferenceOpaque_t wanted{};
    cublasStatus_t got = cublasLtMatmulPreferenceInit(&wanted);
    const auto want = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      if (got == CUBLAS_STATUS_SUCCESS) got = cublasLtMatmulPreferenceSetAttribute(&wanted, what, &value, sizeof value);
    };
    want(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{room_.size()});
    want(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(of.b_alignment));
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(of.a_alignment));
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(of.c_alignment));
    want(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(of.c_alignment));
    if (got != CUBLAS_STATUS_SUCCESS) return got;
    std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
    int written = 0;
    const std::size_t most = answers.size() < found.size() ? answers.size() : found.size();
    got = cublasLtMatmulAlgoGetHeuristic(light(), &how.product, &how.b, &how.a, &how.c, &how.c, &wanted,
                                         static_cast<int>(most), found.data(), &written);
    if (got == CUBLAS_STATUS_NOT_SUPPORTED) return CUBLAS_STATUS_SUCCESS;  // it has no answer, which is one
    for (int i = 0; i < written; ++i) {
      const cublasLtMatmulHeuristicResult_t& each = found[static_cast<std::size_t>(i)];
      if (each.state == CUBLAS_STATUS_SUCCESS)
        answers[count++] = {
            {each.algo, each.workspaceSize}, word_of(each.algo), each.workspaceSize, bits_of(each.algo)};
    }
    return got;
  }
  template <class C, half_precision A>
  requires half_operands<C, A, A>
  [[nodiscard]] cublasStatus_t product(const product_call<C, A, A>& call, const product_algorithm& by,
                                       cudaStream_t order) const noexcept {
    described_product how(problem_of(call));
    if (how.made != CUBLAS_STATUS_SUCCESS) return how.made;
    return cublasLtMatmul(light(), &how.product, &call.alpha, call.b.data, &how.b, call.a.data, &how.a, &call.beta,
                          call.c.data, &how.c, call.c.data, &how.c, &by.how, room_.data(), by.workspace_bytes, order);
  }

  // Transposed, as a `described_product`.
  [[nodiscard]] cublasStatus_t product(const product_call<float>& call) const noexcept {
    if (floats_ == float_products::tf32) return by_tensor_cores(call);
    const auto& [c, a, b, alpha, beta] = call;
    return cublasSgemm_64(with_, way(b.as), way(a.as), size(c.columns), size(c.rows), size(a.width()), &alpha, b.data,
                          size(b.stride), a.data, size(a.stride), &beta, c.data, size(c.stride));
  }
  [[nodiscard]] cublasStatus_t product(const product_call<double>& call) const noexcept {
    const auto& [c, a, b, alpha, beta] = call;
    return cublasDgemm_64(with_, way(b.as), way(a.as), size(c.columns), size(c.rows), size(a.width()), &alpha, b.data,
                          size(b.stride), a.data, size(a.stride), &beta, c.data, size(c.stride));
  }

 private:
  // The pedantic mode of fp32 would keep the tensor cores out. Sums stay fp32, also those of parts.
  [[nodiscard]] cublasStatus_t by_tensor_cores(const product_call<float>& call) const noexcept {
    const auto& [c, a, b, alpha, beta] = call;
    cublasStatus_t got = cublasSetMathMode(with_, CUBLAS_DEFAULT_MATH);
    if (got != CUBLAS_STATUS_SUCCESS) return got;
    got = cublasGemmEx_64(with_, way(b.as), way(a.as), size(c.columns), size(c.rows), size(a.width()), &alpha, b.data,
                          CUDA_R_32F, size(b.stride), a.data, CUDA_R_32F, size(a.stride), &beta, c.data, CUDA_R_32F,
                          size(c.stride), CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT);
    const cublasStatus_t back = cublasSetMathMode(with_, CUBLAS_PEDANTIC_MATH);
    return got == CUBLAS_STATUS_SUCCESS ? back : got;
  }
  // A handle of cuBLAS is one of cuBLASLt too.
  [[nodiscard]] cublasLtHandle_t light() const noexcept { return reinterpret_cast<cublasLtHandle_t>(with_); }
  // One that does not say how it adds parts is taken for one that uses atomics.
  [[nodiscard]] static result_bits bits_of(const cublasLtMatmulAlgo_t& how) noexcept {
    std::uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_INPLACE;
    std::size_t written = 0;
    const cublasStatus_t got = cublasLtMatmulAlgoConfigGetAttribute(&how, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                                    &scheme, sizeof scheme, &written);
    const bool in_place = (scheme & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0;
    return got == CUBLAS_STATUS_SUCCESS && !in_place ? result_bits::repeated : result_bits::varying;
  }
  [[nodiscard]] static constexpr cublasOperation_t way(reading as) noexcept {
    return as == reading::as_is ? CUBLAS_OP_N : CUBLAS_OP_T;
  }
  [[nodiscard]] static constexpr std::int64_t size(std::size_t count) noexcept {
    return static_cast<std::int64_t>(count);
  }

  cublasHandle_t with_;
  float_products floats_;
  std::span<std::byte> room_, panels_;
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
