// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// 09_on_a_gpu.cpp on a GPU, which both ranks share. With a GPU at hand:
//   nvcc -std=c++20 -arch=native -I include -I examples examples/09_on_a_gpu.cu -lcublas -lcublasLt -o on_a_gpu
//   ./on_a_gpu
#include <cstdio>
#include <exception>

#include "belay/cuda.cuh"
#include "on_a_gpu/trainer.hpp"

int main() try {
  belay::cuda::runtime_api gpu;
  belay::launch(belay::cuda::world(gpu, belay::host::world(2)),
                [](belay::rank& rank, auto& run) { on_a_gpu::train(rank, run, 100, on_a_gpu::print); },
                {.explain_faults = belay::fault_explanation::by_handler});
} catch (const std::exception& error) {
  std::fprintf(stderr, "09_on_a_gpu: %s\n", belay::printable_what(error).c_str());
  return 4;
}
