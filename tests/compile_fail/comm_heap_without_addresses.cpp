// expect: a symmetric heap needs a group whose ranks can address each other's memory
#include <belay/comm.hpp>

struct by_messages {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier(belay::where) const {}
};

#ifdef BELAY_BROKEN
constexpr auto size = sizeof(belay::symmetric_heap<by_messages>);
#else
constexpr auto size = sizeof(belay::symmetric_heap<belay::rehearsal::group>);
#endif
