// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <vector>

#include <belay/backend/mpi.hpp>

int main() {
  belay::mpi::world world;
  return world.run([](belay::mpi::rank& rank) {
    std::vector<float> one(4, 1.0F);
    rank.world().all_reduce(std::span(one), belay::sum);
    return one[0] == static_cast<float>(rank.size()) ? 0 : 1;
  });
}
