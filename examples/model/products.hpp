// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The products of the examples: the library's blocked loop, or a BLAS where the build found that to be the faster. The
// choice is part of the program, so it is the same on all ranks. Two functions are all that another BLAS needs.
#pragma once

#include <string>

#include "belay/core/operand.hpp"
#include "belay/kernel/product.hpp"

#ifndef BELAY_HAS_CBLAS
#define BELAY_HAS_CBLAS 0
#endif

#if BELAY_HAS_CBLAS
#include <cblas.h>
#endif

namespace model {

#if BELAY_HAS_CBLAS
[[nodiscard]] inline CBLAS_TRANSPOSE cblas_reading(belay::reading as) {
  return as == belay::reading::as_is ? CblasNoTrans : CblasTrans;
}
[[nodiscard]] inline int cblas_size(std::size_t count) { return static_cast<int>(count); }

inline void cblas_product(const belay::product_call<float>& call) {
  const auto& [c, a, b, alpha, beta] = call;
  cblas_sgemm(CblasRowMajor, cblas_reading(a.as), cblas_reading(b.as), cblas_size(c.rows), cblas_size(c.columns),
              cblas_size(a.width()), alpha, a.data, cblas_size(a.stride), b.data, cblas_size(b.stride), beta, c.data,
              cblas_size(c.stride));
}
inline void cblas_product(const belay::product_call<double>& call) {
  const auto& [c, a, b, alpha, beta] = call;
  cblas_dgemm(CblasRowMajor, cblas_reading(a.as), cblas_reading(b.as), cblas_size(c.rows), cblas_size(c.columns),
              cblas_size(a.width()), alpha, a.data, cblas_size(a.stride), b.data, cblas_size(b.stride), beta, c.data,
              cblas_size(c.stride));
}
#endif

/// The `products` of a launch.
[[nodiscard]] inline belay::host_products products() noexcept {
#if BELAY_HAS_CBLAS
  return {cblas_product, cblas_product};
#else
  return {};
#endif
}

/// "openblas, Haswell" (its name for the instruction set), "cblas", or "blocked loop, 512-bit vectors": for the first
/// line that a trainer prints.
[[nodiscard]] inline std::string product_backend() {
#if BELAY_HAS_CBLAS && defined(OPENBLAS_CONST)
  return std::string("openblas, ") + openblas_get_corename();
#elif BELAY_HAS_CBLAS
  return "cblas";
#else
  return "blocked loop, " + std::to_string(8 * belay::kernel::product_blocks::vector_bytes) + "-bit vectors";
#endif
}

/// Makes the BLAS single-threaded, because a rank is one thread. Called once, before ranks start.
inline void one_thread_per_product() {
#if BELAY_HAS_CBLAS && defined(OPENBLAS_CONST)
  openblas_set_num_threads(1);
#endif
}

}  // namespace model
