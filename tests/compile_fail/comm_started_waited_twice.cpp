// expect: invocation of method 'wait'
// compilers: clang
#include <belay/comm.hpp>

void overlap(const belay::rehearsal::group& group, std::span<float> gradients) {
  auto started = group.start_all_reduce(gradients, belay::sum);
  std::move(started).wait();
#ifdef BELAY_BROKEN
  std::move(started).wait();
#endif
}
