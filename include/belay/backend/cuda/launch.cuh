// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The one launcher of kernels: an index a thread, a row a warp or a block, or a tile a block. For nvcc.
//
//   belay::cuda::launch_each(stream, count, belay::kernel::axpy<float>{0.5F, x, y});
//   belay::cuda::launch_rows(stream, rows, belay::kernel::causal_softmax_rows<float>{x, y, length});
//   belay::cuda::launch_blocks(stream, product.blocks(), product);  // a belay::cuda::grouped_rows
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "belay/core/config.hpp"
#include "belay/kernel/for_each.hpp"
#include "belay/kernel/reduce.hpp"
#include "belay/kernel/team.hpp"

#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 13
#error "belay: the CUDA backend needs nvcc 13 or newer: name it by CMAKE_CUDA_COMPILER"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error \
    "belay: the CUDA backend needs sm_80 or newer: set CMAKE_CUDA_ARCHITECTURES, or nvcc's -arch=sm_NN, to your GPU's"
#endif

namespace belay::inline BELAY_ABI::cuda {

/// The team of a row. The sixteen lanes of a sum lie in it, so that its order is that of the host.
struct warp {
  /// Threads of a warp, and this one's number in it.
  static constexpr unsigned lanes = 32;
  unsigned lane;

  /// Waits for the other lanes; gives the value of lane `other`.
  BELAY_HD void synchronize() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
  template <class T>
  [[nodiscard]] BELAY_HD T from([[maybe_unused]] unsigned other, T value) const {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(0xffffffffU, value, static_cast<int>(other));
#else
    return value;
#endif
  }
};

/// The team of a long row: the warps of a block, whose lanes hand numbers round by memory that they share.
struct block_of_warps {
  using part_type = warp;
  /// Threads of the block, this one's number in it, and a word for each.
  static constexpr unsigned lanes = 256;
  unsigned lane;
  unsigned long long* words;

  /// The warp of this lane.
  [[nodiscard]] BELAY_HD warp part() const { return {lane % warp::lanes}; }
  /// Waits for the other lanes; gives the value of lane `other`.
  BELAY_HD void synchronize() const {
#if defined(__CUDA_ARCH__)
    __syncthreads();
#endif
  }
  template <class T>
  [[nodiscard]] BELAY_HD T from(unsigned other, T value) const {
    static_assert(sizeof(T) <= sizeof *words);
    __builtin_memcpy(words + lane, &value, sizeof value);
    synchronize();
    __builtin_memcpy(&value, words + other, sizeof value);
    synchronize();
    return value;
  }
};

/// The block of a kernel of tiles: each thread has the registers of its lane.
template <class K>
class thread_block {
 public:
  /// One block of threads: its shared memory, and phases that each lane runs before any begins the next.
  BELAY_HD explicit thread_block(typename K::shared_type& shared) : shared_(&shared) {}
  [[nodiscard]] BELAY_HD typename K::shared_type& shared() const noexcept { return *shared_; }
  template <class F>
  BELAY_HD void phase([[maybe_unused]] const F& f) {
#if defined(__CUDA_ARCH__)
    f(threadIdx.x, own_);
    __syncthreads();
#endif
  }

 private:
  typename K::shared_type* shared_;
  typename K::lane_type own_;
};

/// Runs the kernel for each index: threads stride over them.
template <kernel::indexed F>
__global__ void run_indices(std::size_t count, F f) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) f(i);
}

/// Runs the kernel for each pack of indices, and for the rest one by one.
template <kernel::packed F>
__global__ void run_packs(std::size_t count, F f) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x, whole = count / F::indices_of_pack;
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::size_t i = first; i < whole; i += step) f.pack(i * F::indices_of_pack);
  for (std::size_t i = whole * F::indices_of_pack + first; i < count; i += step) f(i);
}

/// Runs the kernel for each row: a warp is its team.
template <kernel::cooperative<warp> G>
__global__ void run_rows(std::size_t rows, G g) {
  const std::size_t step = std::size_t{gridDim.x} * (blockDim.x / warp::lanes);
  std::size_t row = (std::size_t{blockIdx.x} * blockDim.x + threadIdx.x) / warp::lanes;
  for (; row < rows; row += step) g(warp{threadIdx.x % warp::lanes}, row);
}

/// Runs the kernel for each row: a block is its team.
template <kernel::cooperative<block_of_warps> G>
__global__ void __launch_bounds__(block_of_warps::lanes) run_long_rows(std::size_t rows, G g) {
  __shared__ unsigned long long words[block_of_warps::lanes];
  for (std::size_t row = blockIdx.x; row < rows; row += gridDim.x) g(block_of_warps{threadIdx.x, words}, row);
}

/// Shared memory of a block that a kernel has without asking for more, and the most that it has on any GPU from sm_80
/// on, in bytes.
inline constexpr std::size_t usual_block_bytes = std::size_t{48} << 10;
inline constexpr std::size_t most_block_bytes = std::size_t{99} << 10;

/// Runs the kernel for each tile: a block of `K::lanes` threads.
template <kernel::blocked K>
__global__ void __launch_bounds__(K::lanes) run_blocks(std::size_t tiles, K k) {
  const auto run = [&](typename K::shared_type& shared) {
    thread_block<K> block(shared);
    for (std::size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) k(block, tile);
  };
  if constexpr (sizeof(typename K::shared_type) > usual_block_bytes) {
    extern __shared__ __align__(128) unsigned char memory_of_launch[];
    run(*reinterpret_cast<typename K::shared_type*>(memory_of_launch));
  } else {
    __shared__ typename K::shared_type shared;
    run(shared);
  }
}

/// Blocks for so many threads or warps, `each` of them a block; what is beyond the largest grid is done by those.
[[nodiscard]] inline unsigned blocks_for(std::size_t count, std::size_t each) noexcept {
  constexpr std::size_t most = 0x7fffffffU;
  const std::size_t blocks = (count + each - 1) / each;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

/// The blocks of a launch, and threads and bytes of shared memory of each beside what the kernel itself has.
struct launch_shape {
  /// Blocks, threads of each, bytes of each.
  unsigned blocks;
  unsigned threads;
  std::size_t block_bytes = 0;
};

/// Launches a kernel. Gives the error of this launch alone: what the thread's calls have met before is not asked for,
/// such as that an event is not reached yet.
template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t launch_kernel(cudaStream_t on, launch_shape shape, void (*kernel)(Parameters...),
                                        const Arguments&... arguments) {
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(shape.blocks);
  how.blockDim = dim3(shape.threads);
  how.dynamicSmemBytes = shape.block_bytes;
  how.stream = on;
  return cudaLaunchKernelEx(&how, kernel, arguments...);
}

/// Launches the kernel on the stream, by 16 bytes an access where it has a form for that and its arrays are aligned;
/// nothing for a count of 0. Gives the launch's error.
template <kernel::indexed F>
[[nodiscard]] cudaError_t launch_each(cudaStream_t on, std::size_t count, const F& f) {
  constexpr unsigned threads = 256;
  if constexpr (kernel::packed<F>) {
    if (kernel::takes_packs(f, count))
      return launch_kernel(on, {blocks_for(count / F::indices_of_pack, threads), threads}, run_packs<F>, count, f);
  }
  if (count == 0) return cudaSuccess;
  return launch_kernel(on, {blocks_for(count, threads), threads}, run_indices<F>, count, f);
}

/// Launches `run_rows` on the stream, or `run_long_rows` of rows that are longer than a chunk of their sums; nothing
/// for no rows. Gives the launch's error.
template <kernel::cooperative<warp> G>
[[nodiscard]] cudaError_t launch_rows(cudaStream_t on, std::size_t rows, const G& g) {
  constexpr unsigned warps = 4;
  if (rows == 0) return cudaSuccess;
  if constexpr (kernel::sized_rows<G>) {
    if (g.columns() > kernel::sum_chunk)
      return launch_kernel(on, {blocks_for(rows, 1), block_of_warps::lanes}, run_long_rows<G>, rows, g);
  }
  return launch_kernel(on, {blocks_for(rows, warps), warps * warp::lanes}, run_rows<G>, rows, g);
}

/// Every tile is one of a block of `K::lanes` threads.
template <kernel::blocked K>
[[nodiscard]] cudaError_t launch_blocks(cudaStream_t on, std::size_t tiles, const K& k) {
  constexpr std::size_t bytes = sizeof(typename K::shared_type);
  static_assert(bytes <= most_block_bytes && K::lanes % 32 == 0);
  if (tiles == 0) return cudaSuccess;
  launch_shape shape{blocks_for(tiles, 1), K::lanes};
  if constexpr (bytes > usual_block_bytes) {
    shape.block_bytes = bytes;
    const cudaError_t allowed =
        cudaFuncSetAttribute(run_blocks<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (allowed != cudaSuccess) return allowed;
  }
  return launch_kernel(on, shape, run_blocks<K>, tiles, k);
}

/// Launches one kernel after the other on a stream, until one cannot be.
struct queued_kernels {
  /// The stream, and the error of the first launch that failed.
  cudaStream_t order;
  cudaError_t launched = cudaSuccess;

  /// Launch a kernel of teams or of blocks; whether it was launched.
  template <class G>
  [[nodiscard]] bool teams(std::size_t rows, const G& g) {
    return (launched = launch_rows(order, rows, g)) == cudaSuccess;
  }
  template <class K>
  [[nodiscard]] bool blocks(const K& k) {
    return (launched = launch_blocks(order, k.blocks(), k)) == cudaSuccess;
  }
};

}  // namespace belay::inline BELAY_ABI::cuda
