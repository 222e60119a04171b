// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <span>

#include <belay/backend/host.hpp>

int main() {
  int failed = 0;
  for (const int sum : belay::host::world{2}.run([](belay::host::rank& rank) {
         int one = 1;
         rank.world().all_reduce(std::span(&one, 1), belay::sum);
         return one;
       }))
    failed += sum != 2 ? 1 : 0;
  return failed;
}
