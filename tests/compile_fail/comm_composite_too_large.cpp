// expect: let it capture at most 288 bytes
#include <belay/comm.hpp>

struct counts_of_ranks {
  int each[100];
};

void start(const belay::group& group, const counts_of_ranks& counts) {
#ifdef BELAY_BROKEN
  group
      .start_composite(belay::operation::barrier,
                       [counts](const belay::group_calls& calls) {
                         if (counts.each[0] > 0) calls.barrier();
                       })
      .wait();
#else
  group
      .start_composite(belay::operation::barrier,
                       [counts = &counts](const belay::group_calls& calls) {
                         if (counts->each[0] > 0) calls.barrier();
                       })
      .wait();
#endif
}
