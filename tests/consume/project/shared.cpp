// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One function of a shared library; another library of the same program has another one.
#include <belay/backend/host.hpp>
#include <span>

int BELAY_CONSUMER_FUNCTION() {
  int failed = 0;
  for (const int sum : belay::host::world{2}.run([](belay::host::rank& rank) {
         int one = 1;
         rank.world().all_reduce(std::span(&one, 1), belay::sum);
         return one;
       }))
    failed += sum != 2 ? 1 : 0;
  return failed;
}
