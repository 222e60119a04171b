// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The products of the examples: the library's blocked loop, or a BLAS where the build found that to be the faster. The
// choice is part of the program, so it is the same on all ranks. A policy of products is a template argument of the
// kit, so this is all that an engine with another BLAS needs.
#pragma once

#include <string>

#include "belay/core/operand.hpp"
#include "belay/step/engine.hpp"

#ifndef BELAY_HAS_CBLAS
#define BELAY_HAS_CBLAS 0
#endif

#if BELAY_HAS_CBLAS
#include <cblas.h>
#endif

namespace model {

#if BELAY_HAS_CBLAS
/// c = alpha a b + beta c by CBLAS.
struct products {
  static void product(belay::operand<float> c, belay::operand<const float> a, belay::operand<const float> b,
                      float alpha, float beta) {
    cblas_sgemm(CblasRowMajor, reading(a.as), reading(b.as), size(c.rows), size(c.columns), size(a.width()), alpha,
                a.data, size(a.stride), b.data, size(b.stride), beta, c.data, size(c.stride));
  }
  static void product(belay::operand<double> c, belay::operand<const double> a, belay::operand<const double> b,
                      double alpha, double beta) {
    cblas_dgemm(CblasRowMajor, reading(a.as), reading(b.as), size(c.rows), size(c.columns), size(a.width()), alpha,
                a.data, size(a.stride), b.data, size(b.stride), beta, c.data, size(c.stride));
  }

 private:
  static CBLAS_TRANSPOSE reading(belay::reading as) { return as == belay::reading::as_is ? CblasNoTrans : CblasTrans; }
  static int size(std::size_t count) { return static_cast<int>(count); }
};
#else
using products = belay::kernel::blocked_products;
#endif

using host_kit = belay::host_kit<products>;
using host_engine = belay::engine<belay::host_pages, host_kit>;

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
