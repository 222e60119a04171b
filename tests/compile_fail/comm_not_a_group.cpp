// expect: barrier needs a group of ranks
#include <belay/comm.hpp>

void meet(const belay::rehearsal::rank& rank) {
#ifdef BELAY_BROKEN
  belay::barrier(rank);
#else
  belay::barrier(rank.world());
#endif
}
