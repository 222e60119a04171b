// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels on a device, as tests launch them: those of an index a thread, those of a row a warp.
#pragma once

#include <cstddef>

#include "belay/backend/cuda/launch.cuh"
#include "belay/kernel/team.hpp"

namespace test {

/// Queues a kernel on the default stream.
template <class F>
cudaError_t launch(std::size_t count, const F& f) {
  if constexpr (belay::kernel::cooperative<F>) {
    return belay::cuda::launch_rows(nullptr, count, f);
  } else {
    return belay::cuda::launch_each(nullptr, count, f);
  }
}

}  // namespace test
