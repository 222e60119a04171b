// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <atomic>
#include <belay/backend/host.hpp>
#include <belay/belay.hpp>
#include <span>

int main() {
  std::atomic<int> sums{0};
  belay::launch(belay::host::world{2}, [&](belay::rank& rank, belay::run& run) {
    belay::mesh mesh{rank, {.data = 2}};
    const std::span<int> one = run.lease<int>(belay::tier::device, 1, "one");
    if (run.rehearsing()) return;
    one[0] = 1;
    mesh.data().all_reduce(one, belay::sum);
    sums += one[0];
  });
  return sums == 4 ? 0 : 1;
}
