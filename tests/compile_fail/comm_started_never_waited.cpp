// expect: 'started'|object .started.
// compilers: clang
#include <belay/comm.hpp>

void overlap(const belay::rehearsal::group& group, std::span<float> gradients) {
  auto started = group.start_all_reduce(gradients, belay::sum);
#ifndef BELAY_BROKEN
  std::move(started).wait();
#endif
}

// Handed on, and kept in an array: no false alarm.
belay::pending begin(const belay::rehearsal::group& group, std::span<float> gradients) {
  auto started = group.start_all_reduce(gradients, belay::sum);
  return std::move(started).hand_over();
}

void many(const belay::rehearsal::group& group, std::span<float> gradients) {
  belay::pending kept[2];
  kept[0] = begin(group, gradients);
  kept[1] = begin(group, gradients);
  for (auto& one : kept) std::move(one).wait();
}
