// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What waiting costs: seven of eight ranks are in an all_reduce while one computes for a second, and each waits its
// share of a core. Exit code 1 above the limit.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "belay/backend/host/world.hpp"
#include "belay/comm/collective.hpp"

namespace {

constexpr double limit = 0.05;

double thread_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

double compute_for(std::chrono::duration<double> time) {
  const auto end = std::chrono::steady_clock::now() + time;
  double x = 1;
  while (std::chrono::steady_clock::now() < end) x = x * 1.0000001 + 1e-9;
  return x;
}

}  // namespace

int main() {
  const bool time_point = std::getenv("BELAY_BENCH_SMOKE") != nullptr;
  const std::chrono::duration<double> time(time_point ? 0.1 : 1.0);
  const std::vector<double> shares = belay::host::world{8}.run([&](belay::host::rank& self) {
    const belay::host::group& group = self.world();
    float x[2] = {1, 2};
    belay::all_reduce(group, x, belay::sum);  // all have arrived
    if (self.number() == 0) {
      x[0] = static_cast<float>(compute_for(time));
      belay::all_reduce(group, x, belay::sum);
      return 0.0;
    }
    const double before = thread_seconds();
    belay::all_reduce(group, x, belay::sum);
    return (thread_seconds() - before) / time.count();
  });
  const double most = *std::max_element(shares.begin(), shares.end());
  std::printf("waiting: a rank that waits %.1f s for one that computes uses %.2f %% of a core at most (limit 5 %%)\n",
              time.count(), 100 * most);
  return most < limit || time_point ? 0 : 1;
}
