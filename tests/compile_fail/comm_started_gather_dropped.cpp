// expect: owns its buffers until it is waited for
#include <belay/comm.hpp>

void overlap(const belay::rehearsal::group& group, std::span<float> mine, std::span<float> all) {
#ifdef BELAY_BROKEN
  belay::start_gather(group, mine, all, 0);
#else
  belay::start_gather(group, mine, all, 0).wait();
#endif
}
