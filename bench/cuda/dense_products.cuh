// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Dense products of bf16 of a model's shapes, as the kit queues them, beside the fastest of all that cuBLASLt's
// heuristic lists. Only here is an algorithm chosen by a clock: it is what a rank leaves for bits that never change.
#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/core/dtype.hpp"
#include "cuda/figures.hpp"

namespace bench {

/// c [rows, columns] = a [rows, depth] times b, which lies as a model has its weights; or c += a^T b, as a weight's
/// gradient, which is float.
enum class pass_of_product { forward, of_weight };

template <class C>
class dense_product {
 public:
  using call_type = belay::product_call<C, belay::bf16>;

  dense_product(const belay::cuda::device<belay::cuda::runtime_api>& gpu, pass_of_product pass, std::size_t rows,
                std::size_t columns, std::size_t depth)
      : memory_(gpu, 2 * (rows + columns) * depth + sizeof(C) * rows * columns + library_bytes) {
    auto* const a = reinterpret_cast<belay::bf16*>(memory_.data() + library_bytes);
    belay::bf16* const b = a + rows * depth;
    const bool turned = pass == pass_of_product::of_weight;
    call_.a = {a, turned ? depth : rows, turned ? rows : depth, turned ? rows : depth,
               turned ? belay::reading::transposed : belay::reading::as_is};
    call_.b = {b, depth, columns, columns};
    call_.c = {reinterpret_cast<C*>(b + columns * depth), rows, columns, columns};
    call_.beta = turned ? 1.0F : 0.0F;
  }

  template <class Kit>
  void queue(Kit& kit) const {
    kit.product(call_);
  }
  /// The best seconds of a call over all that the heuristic lists for the same workspace; 0 where it lists none.
  template <class Kit>
  [[nodiscard]] double best_of_library(Kit& kit, std::size_t calls) const {
    const auto stream = kit.stream().handle();
    const auto light = reinterpret_cast<cublasLtHandle_t>(stream.products->get());
    belay::cuda::described_product how(belay::cuda::problem_of(call_));
    cublasLtMatmulPreferenceOpaque_t wanted{};
    const std::uint64_t room = library_bytes;
    static_cast<void>(cublasLtMatmulPreferenceInit(&wanted));
    static_cast<void>(
        cublasLtMatmulPreferenceSetAttribute(&wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    std::array<cublasLtMatmulHeuristicResult_t, 32> found{};
    int written = 0;
    static_cast<void>(cublasLtMatmulAlgoGetHeuristic(light, &how.product, &how.b, &how.a, &how.c, &how.c, &wanted,
                                                     static_cast<int>(found.size()), found.data(), &written));
    double best = 0;
    for (const cublasLtMatmulHeuristicResult_t& each : std::span(found).first(static_cast<std::size_t>(written))) {
      bool taken = each.state == CUBLAS_STATUS_SUCCESS;
      const auto multiply = [&] {
        taken = taken && cublasLtMatmul(light, &how.product, &call_.alpha, call_.b.data, &how.b, call_.a.data, &how.a,
                                        &call_.beta, call_.c.data, &how.c, call_.c.data, &how.c, &each.algo,
                                        memory_.data(), library_bytes, stream.order) == CUBLAS_STATUS_SUCCESS;
      };
      multiply();
      const double seconds = seconds_of(kit.stream(), calls, multiply);
      if (taken && (best == 0 || seconds < best)) best = seconds;
    }
    return best;
  }
  [[nodiscard]] double operations() const {
    return 2.0 * static_cast<double>(call_.c.rows) * static_cast<double>(call_.c.columns) *
           static_cast<double>(call_.a.width());
  }

 private:
  static constexpr std::size_t library_bytes = belay::cuda::product_handle::library_bytes;

  belay::cuda::device_memory<belay::cuda::runtime_api> memory_;
  call_type call_;
};

template <class C, class Kit>
void measure_dense(const belay::cuda::device<belay::cuda::runtime_api>& gpu, Kit& kit, std::size_t rounds,
                   pass_of_product pass, std::array<std::size_t, 3> shape, figures& out) {
  const dense_product<C> one(gpu, pass, shape[0], shape[1], shape[2]);
  std::vector<double> shares, speeds;
  for (std::size_t r = 0; r <= rounds; ++r) {
    const double own = seconds_of(kit.stream(), 16, [&] { one.queue(kit); });
    const double best = one.best_of_library(kit, 16);
    if (r == 0) continue;
    speeds.push_back(1e-12 * one.operations() / own);
    if (best > 0) shares.push_back(best / own);
  }
  const std::string what = std::string(pass == pass_of_product::forward ? "product" : "weight's gradient") +
                           " of bf16, " + std::to_string(shape[0]) + " x " + std::to_string(shape[1]) + " of " +
                           std::to_string(shape[2]);
  out.told(what, median(speeds), "TFLOP/s");
  if (!shares.empty()) out.at_least(what + ", of cuBLASLt's best", median(shares), 0.90, 0.97);
}

/// Their figures: projections, a gate, a head and a weight's gradient of `rows` tokens: 4096, or 512 where it is quick.
template <class Kit>
void measure_dense_products(const belay::cuda::device<belay::cuda::runtime_api>& gpu, Kit& kit, std::size_t rounds,
                            std::size_t rows, figures& out) {
  const std::size_t hidden = rows / 2;
  const auto forward = pass_of_product::forward;
  measure_dense<belay::bf16>(gpu, kit, rounds, forward, {rows, hidden, hidden}, out);
  measure_dense<belay::bf16>(gpu, kit, rounds, forward, {rows, hidden, 4 * hidden}, out);
  measure_dense<belay::bf16>(gpu, kit, rounds, forward, {rows, 64, hidden}, out);
  measure_dense<float>(gpu, kit, rounds, forward, {rows, 16 * hidden, hidden}, out);
  measure_dense<float>(gpu, kit, rounds, pass_of_product::of_weight, {hidden, 4 * hidden, rows}, out);
}

}  // namespace bench
