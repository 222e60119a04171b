// expect: formats of 8 bits are moved, never reduced
#include <belay/comm.hpp>

void reduce(const belay::rehearsal::group& group, std::span<belay::fp8_e5m2> x, std::span<std::int8_t> y) {
  belay::all_to_all(group, x, x);
  belay::reduce_scatter(group, y, y.first(1), belay::average);
#ifdef BELAY_BROKEN
  belay::reduce_scatter(group, x, x.first(1), belay::average);
#endif
}
