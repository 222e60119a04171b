// expect: invalid invocation of method '~returning
// compilers: clang
#include <utility>

#include "belay/backend/host.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/step.hpp"

using exchange = belay::expert_exchange<float>;
using frame = belay::frame<belay::host_engine>;
using tokens = belay::view<const float, 2>;
using rows = belay::view<float, 2>;

void backward(frame& call, belay::merged<float>&& merged, tokens dy, rows dweights, rows dx) {
  auto back = std::move(merged).backward(call, dy, dweights);
#ifndef BELAY_BROKEN
  std::move(back).finish(call, dx);
#else
  static_cast<void>(dx);
#endif
}

int main() {}
