// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The forward of the model over the training mesh, for evaluation and sampling. It owes nothing, micro-batches cross
// the stages one by one, and a rank without sequences takes part with none.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "belay/comm/communicator.hpp"
#include "belay/core/view.hpp"
#include "belay/step.hpp"

namespace train_moe {

/// Runs `tokens` [sequences, length] through all stages. The last stage calls `see(logits)` on the compute stream, with
/// [sequences, length, vocabulary]. Collective over the pipeline and its expert groups:
/// the ranks of one pipeline give the same shape, those of one expert group may give different numbers of
/// sequences.
template <class T, class Machine, class Engine, class See>
void forward_only(Machine& machine, const belay::step<Engine>& step, belay::view<const std::int32_t, 2> tokens,
                  See&& see) {
  auto& model = machine.model();
  const auto& group = machine.mesh().pipeline();
  Engine& engine = step.engine();
  const belay::extents<3> boundary{tokens.extent(0), tokens.extent(1), model.config().hidden};
  belay::gradient<Engine, T, 3> current{engine, boundary};  // an owned tensor that moves from layer to layer
  if (model.has_embedding()) {
    const auto seen = belay::observe(step, model.first(), tokens);
    engine.compute().run([&] { std::copy_n(seen.out().data(), seen.out().size(), current.values().data()); });
  } else {
    const std::array incoming{belay::p2p::receive(group.rank() - 1, current.values().flat())};
    group.exchange(std::span<const belay::p2p>(incoming));
  }
  for (auto& layer : model.layers()) {
    const belay::view<const T, 3> x = current;
    const auto seen = belay::observe(step, layer, x);
    engine.compute().run([&] { std::copy_n(seen.out().data(), seen.out().size(), current.values().data()); });
  }
  const belay::view<const T, 3> last = current;
  if (model.has_head()) {
    const auto logits = belay::observe(step, model.last(), last);
    engine.compute().run([&] { see(logits.out()); });
  } else {
    const std::array outgoing{belay::p2p::send(group.rank() + 1, last.flat())};
    group.exchange(std::span<const belay::p2p>(outgoing));
  }
}

}  // namespace train_moe
