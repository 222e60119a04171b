// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Products of experts in bf16, as the kit queues them, beside cuBLAS's grouped product, whose sizes the host knows.
// Rows are shared out unevenly, as a router does.
#pragma once

#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/core/dtype.hpp"
#include "cuda/figures.hpp"

namespace bench {

/// rows [count, depth] times the transposed matrix [columns, depth] of each expert, and where its rows end.
class expert_products {
 public:
  using api_type = belay::cuda::runtime_api;
  using memory_type = belay::cuda::device_memory<api_type>;

  expert_products(const belay::cuda::device<api_type>& gpu, std::size_t count, std::size_t columns, std::size_t depth,
                  std::size_t experts)
      : columns_(columns), depth_(depth), memory_(gpu, bytes_of(count, columns, depth, experts)) {
    for (std::size_t e = 0, end = 0; e < experts; ++e) {
      end = e + 1 == experts ? count : end + (e % 2 == 0 ? 3 : 1) * count / (2 * experts);
      ends_.push_back(static_cast<std::int32_t>(end));
    }
    std::byte* const first = memory_.data();
    const std::size_t matrices = experts * columns * depth;
    rows_ = reinterpret_cast<belay::bf16*>(first);
    matrices_ = rows_ + count * depth;
    results_ = matrices_ + matrices;
    there_ = reinterpret_cast<std::int32_t*>(results_ + count * columns);
    auto** const pointers = reinterpret_cast<void**>(there_ + 2 * ((experts + 1) / 2));
    std::vector<void*> all(3 * experts);
    for (std::size_t e = 0, begin = 0; e < experts; begin = static_cast<std::size_t>(ends_[e++])) {
      all[e] = matrices_ + e * columns * depth;
      all[experts + e] = rows_ + begin * depth;
      all[2 * experts + e] = results_ + begin * columns;
    }
    pointers_ = pointers;
    copy(there_, ends_.data(), experts * sizeof ends_[0]);
    copy(pointers, all.data(), all.size() * sizeof all[0]);
  }

  template <class Kit>
  void queue(Kit& kit) const {
    const std::size_t count = static_cast<std::size_t>(ends_.back());
    const belay::operand_stack<const belay::bf16> stack{matrices_, ends_.size(), columns_, depth_,
                                                        belay::reading::transposed};
    kit.grouped(belay::grouped_rows_call<belay::bf16>{
        {results_, count, columns_, columns_}, {rows_, count, depth_, depth_}, stack, {there_, {ends_.size()}}});
  }
  /// By cuBLAS. (A row-major matrix is the transpose of a column-major one.)
  [[nodiscard]] bool queue_by_library(cublasHandle_t handle) const {
    static_cast<void>(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
    const std::size_t experts = ends_.size();
    const auto m = static_cast<std::int64_t>(columns_), k = static_cast<std::int64_t>(depth_);
    const std::vector<cublasOperation_t> turned(experts, CUBLAS_OP_T), as_is(experts, CUBLAS_OP_N);
    const std::vector<std::int64_t> ms(experts, m), ks(experts, k), one(experts, 1);
    std::vector<std::int64_t> ns;
    for (std::size_t e = 0; e < experts; ++e) ns.push_back(ends_[e] - (e == 0 ? 0 : ends_[e - 1]));
    const std::vector<float> alpha(experts, 1), beta(experts, 0);
    const cublasStatus_t got = cublasGemmGroupedBatchedEx_64(
        handle, turned.data(), as_is.data(), ms.data(), ns.data(), ks.data(), alpha.data(), pointers_, CUDA_R_16BF,
        ks.data(), pointers_ + experts, CUDA_R_16BF, ks.data(), beta.data(), pointers_ + 2 * experts, CUDA_R_16BF,
        ms.data(), static_cast<std::int64_t>(experts), one.data(), CUBLAS_COMPUTE_32F);
    static_cast<void>(cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH));  // as the kit has it
    return got == CUBLAS_STATUS_SUCCESS;
  }
  [[nodiscard]] double operations() const {
    return 2.0 * static_cast<double>(ends_.back()) * static_cast<double>(columns_) * static_cast<double>(depth_);
  }

 private:
  [[nodiscard]] static std::size_t bytes_of(std::size_t count, std::size_t columns, std::size_t depth,
                                            std::size_t experts) {
    return 2 * (count * (columns + depth) + experts * columns * depth) + experts * (4 + 3 * sizeof(void*)) + 8;
  }
  static void copy(void* to, const void* from, std::size_t bytes) {
    const cudaError_t got = cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
    if (got != cudaSuccess) throw belay::input_error(cudaGetErrorString(got), belay::where::current());
  }

  std::size_t columns_;
  std::size_t depth_;
  memory_type memory_;
  std::vector<std::int32_t> ends_;
  belay::bf16* rows_;
  belay::bf16* matrices_;
  belay::bf16* results_;
  std::int32_t* there_;
  void** pointers_;
};

/// Their figures: 8192 rows, or 512 where it is quick, of eight experts.
template <class Kit>
void measure_experts(const belay::cuda::device<belay::cuda::runtime_api>& gpu, Kit& kit, std::size_t rounds,
                     std::size_t rows, figures& out) {
  const expert_products all(gpu, rows, rows / 2, rows / 8, 8);
  const cublasHandle_t handle = kit.stream().handle().products->get();
  std::vector<double> shares, speeds;
  for (std::size_t r = 0; r <= rounds; ++r) {
    bool taken = true;
    const double own = seconds_of(kit.stream(), 16, [&] { all.queue(kit); });
    const double by_library = seconds_of(kit.stream(), 16, [&] { taken = taken && all.queue_by_library(handle); });
    if (r == 0) continue;
    speeds.push_back(1e-12 * all.operations() / own);
    if (taken) shares.push_back(by_library / own);
  }
  out.told("products of experts of bf16, " + std::to_string(rows) + " rows", median(speeds), "TFLOP/s");
  if (shares.empty()) return;
  out.at_least("products of experts beside cuBLAS's grouped product", median(shares), 0.60, 0.80);
}

}  // namespace bench
