// expect: this communicator does not offer started exchanges between pairs of ranks
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <belay/comm.hpp>

// A communicator of collectives alone.
struct collective_group {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier(belay::where) const {}
};

void give_on(const collective_group& group, std::span<const belay::p2p> transfers) {
  belay::barrier(group);
#ifdef BELAY_BROKEN
  static_cast<void>(belay::start_exchange(group, transfers));
#endif
  static_cast<void>(transfers);
}
