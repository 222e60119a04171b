// expect: a mesh is made of a rank: the argument of the body that a world runs
#include <belay/comm.hpp>

#ifdef BELAY_BROKEN
constexpr auto size = sizeof(belay::mesh<belay::rehearsal::group>);
#else
constexpr auto size = sizeof(belay::mesh<belay::rehearsal::rank>);
#endif
