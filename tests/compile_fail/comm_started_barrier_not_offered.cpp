// expect: this communicator does not offer started barriers
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <belay/comm.hpp>

// A communicator whose barrier can be called and not started.
struct patient_group {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier(belay::where) const {}
};

void meet(const patient_group& group) {
  belay::barrier(group);
#ifdef BELAY_BROKEN
  static_cast<void>(belay::start_barrier(group));
#endif
}
