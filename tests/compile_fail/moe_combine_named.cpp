// expect: combine consumes its handle
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
#ifdef BELAY_BROKEN
  sent.combine(call, y);
#endif
  std::move(sent).combine(call, y).discard(call, "this case is about the combine");
}

int main() {}
