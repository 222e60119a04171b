// expect: invalid invocation of method '~dispatched
// compilers: clang
#include <utility>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step.hpp"

using exchange = belay::expert_exchange<float>;
using frame = belay::frame<belay::host_engine>;
using tokens = belay::view<const float, 2>;
using rows = belay::view<float, 2>;

void layer(frame& call, exchange& experts, tokens x, const belay::routing<float>& routed, rows y) {
  auto sent = experts.dispatch(call, x, routed);
#ifndef BELAY_BROKEN
  std::move(sent).combine(call, y).discard(call, "this case is about the combine");
#else
  static_cast<void>(sent.rows());
  static_cast<void>(y);
#endif
}

int main() {}
