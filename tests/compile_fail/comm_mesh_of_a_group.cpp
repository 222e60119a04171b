// expect: a mesh is made of a rank: the argument of the body that a world runs
#include <belay/comm.hpp>

#ifdef BELAY_BROKEN
int stages(belay::rehearsal::group& of) {
#else
int stages(belay::rehearsal::rank& of) {
#endif
  return belay::mesh(of, {.pipeline = 2}).pipeline().size();
}
