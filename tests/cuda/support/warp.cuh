// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Kernels on a device, as tests launch them: those of an index by cub, those of a row by a warp.
#pragma once

#include <cstddef>
#include <cub/device/device_for.cuh>

#include "belay/kernel/team.hpp"

namespace test {

struct warp {
  static constexpr unsigned lanes = 32;
  unsigned lane;
  BELAY_HD void synchronize() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
  template <class T>
  [[nodiscard]] BELAY_HD T from([[maybe_unused]] unsigned other, T value) const {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(0xffffffffu, value, static_cast<int>(other));
#else
    return value;
#endif
  }
};

namespace {

template <class G>
__global__ void run_rows(std::size_t rows, G g) {
  const std::size_t row = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp::lanes;
  if (row < rows) g(warp{threadIdx.x % warp::lanes}, row);
}

}  // namespace

/// Queues a kernel on the default stream.
template <class F>
cudaError_t launch(std::size_t count, const F& f) {
  if (count == 0) return cudaSuccess;
  if constexpr (belay::kernel::cooperative<F>) {
    constexpr unsigned warps = 4;
    run_rows<<<static_cast<unsigned>((count + warps - 1) / warps), warps * warp::lanes>>>(count, f);
    return cudaGetLastError();
  } else {
    return cub::DeviceFor::Bulk(count, f);
  }
}

}  // namespace test
