// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Where a handle may be without a warning: under a name, in Belay's own stores, on the typed tape, in a residue.
#include "support/lost_handle.hpp"

struct residue {
  tensor out;
  handle_type inner;
};
struct wider : residue {
  handle_type other;
};

void stores(const scope_type& scope, doubling& layer, tensor x) {
  belay::handle_store<handle_type> handles{1};
  handles.keep(0, belay::forward(scope, layer, x));
  auto& kept = handles.at(0);
  static_cast<void>(kept.out());
  auto taken = handles.take(0);
  static_cast<void>(std::move(taken).backward(x));
}

void on_the_tape(belay::step<engine_type>& step, doubling& layer, tensor x) {
  step.run([&](auto tape) {
    auto one = std::move(tape).forward(layer, x);
    auto back = std::move(one).backward(x);
    return std::move(back.rest);
  });
}

auto handed_over(const scope_type& scope, doubling& layer, tensor x) {
  auto handle = belay::forward(scope, layer, x);
  return std::move(handle).hand_over();
}
