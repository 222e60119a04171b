// expect: invalid invocation of method '~merged
// compilers: clang
#include <utility>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step.hpp"

using exchange = belay::expert_exchange<float>;
using frame = belay::frame<belay::host_engine>;
using tokens = belay::view<const float, 2>;
using rows = belay::view<float, 2>;

void layer(frame& call, exchange& experts, tokens x, const belay::routing<float>& routed, rows y, rows dweights,
           rows dx) {
  auto sent = experts.dispatch(call, x, routed);
  auto merged = std::move(sent).combine(call, y);
#ifndef BELAY_BROKEN
  auto back = std::move(merged).backward(call, y, dweights);
  std::move(back).finish(call, dx);
#else
  static_cast<void>(dweights);
  static_cast<void>(dx);
#endif
}

int main() {}
