// expect: this communicator does not offer this operation for such elements
#include <belay/comm.hpp>

// A communicator that honestly lacks everything but the minimum.
struct shouting_distance {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier(belay::where) const {}
};
static_assert(belay::communicator<shouting_distance>);

void tell(std::span<int> x) {
  belay::barrier(shouting_distance{});
#ifdef BELAY_BROKEN
  belay::broadcast(shouting_distance{}, x, 0);
#endif
  static_cast<void>(x);
}
