// expect: a reduction is belay::sum, belay::product, belay::minimum, belay::maximum or belay::average
#include <belay/comm.hpp>

void reduce(const belay::rehearsal::group& group, std::span<float> x, std::span<float> part) {
#ifdef BELAY_BROKEN
  belay::reduce_scatter(group, x, part, belay::reduction::average);
#else
  belay::reduce_scatter(group, x, part, belay::average);
#endif
}
