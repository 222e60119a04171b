// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two ranks on the CPU train what 09_on_a_gpu.cu trains on a GPU: the trainer is one header, the line of the launch is
// another one.      examples/run 09_on_a_gpu
#include <cstdio>
#include <exception>

#include "belay/backend/host.hpp"
#include "on_a_gpu/trainer.hpp"

int main() try {
  belay::launch(belay::host::world(2),
                [](belay::rank& rank, belay::run& run) { on_a_gpu::train(rank, run, 100, on_a_gpu::print); },
                {.explain_faults = belay::fault_explanation::by_handler});
} catch (const std::exception& error) {
  std::fprintf(stderr, "09_on_a_gpu: %s\n", belay::printable_what(error).c_str());
  return 1;
}
