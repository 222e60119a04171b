// expect: their type must be trivially copyable, and not const here
#include <belay/comm.hpp>

void hear(const belay::rehearsal::group& group, std::span<const int> read_only, std::span<int> memory) {
  belay::receive_from(group, 1, memory);
#ifdef BELAY_BROKEN
  belay::receive_from(group, 1, read_only);
#endif
  static_cast<void>(read_only);
}
