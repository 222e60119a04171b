// expect: formats of 8 bits are moved, never reduced
#include <belay/comm.hpp>

void reduce(const belay::rehearsal::group& group, std::span<belay::fp8_e4m3> x, std::span<std::uint8_t> y) {
  belay::start_broadcast(group, x, 0).wait();
  belay::start_reduce(group, y, belay::product, 0).wait();
#ifdef BELAY_BROKEN
  belay::start_reduce(group, x, belay::maximum, 0).wait();
#endif
}
