// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <belay/backend/mpi.hpp>

int main() {
  return belay::mpi::world().run([](belay::mpi::rank& rank) {
    int one = 1;
    rank.world().all_reduce(std::span(&one, 1), belay::sum);
    return one == rank.size() ? 0 : 1;
  });
}
