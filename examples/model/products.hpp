// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The products of the examples: a BLAS where there is one, the library's blocked loop elsewhere. A policy of products
// is a template argument of the kit, so this is all that an engine with another BLAS needs.
#pragma once

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

/// "openblas", "cblas" or "blocked loop": for the first line a trainer prints.
[[nodiscard]] inline const char* product_backend() {
#if BELAY_HAS_CBLAS && defined(OPENBLAS_CONST)
  return "openblas";
#elif BELAY_HAS_CBLAS
  return "cblas";
#else
  return "blocked loop";
#endif
}

/// Makes the BLAS single-threaded, because a rank is one thread. Called once, before ranks start.
inline void one_thread_per_product() {
#if BELAY_HAS_CBLAS && defined(OPENBLAS_CONST)
  openblas_set_num_threads(1);
#endif
}

}  // namespace model
