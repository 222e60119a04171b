// expect: a collective needs a group of ranks
#include <belay/comm.hpp>

#include <span>

void add(const belay::rehearsal::rank& rank, std::span<float> x) {
#ifdef BELAY_BROKEN
  belay::all_reduce(rank, x, belay::sum);
#else
  belay::all_reduce(rank.world(), x, belay::sum);
#endif
}
