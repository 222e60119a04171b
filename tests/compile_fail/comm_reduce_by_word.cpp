// expect: a reduction is belay::sum, belay::product, belay::minimum, belay::maximum or belay::average
#include <belay/comm.hpp>

void reduce(const belay::rehearsal::group& group, std::span<float> x) {
#ifdef BELAY_BROKEN
  belay::all_reduce(group, x, belay::reduction::sum);
#else
  belay::all_reduce(group, x, belay::sum);
#endif
}
