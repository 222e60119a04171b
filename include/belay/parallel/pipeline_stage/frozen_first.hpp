// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The first stage of a network whose first() is frozen: that is observed, and the layer above it gets an input without
// a gradient.
// IWYU pragma: private, include "belay/parallel/pipeline_stage.hpp"
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/pipeline_stage/network.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/handle_store.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/recompute.hpp"
#include "belay/step/saved.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// The handles of a stage's frozen first layer and of the lowest layer that is trained, by micro-batch. These two stay
/// on the device, also where the activations of others are offloaded.
template <class Network, class Engine, class T, std::size_t Rank, class Input, class Activations>
class frozen_first_handles {
 public:
  using hidden_view = view<const T, Rank>;

  explicit frozen_first_handles(std::size_t micro_batches)
      : first_(micro_batches), plain_(micro_batches), recomputed_(micro_batches) {}

  /// Runs the first layer, and the one above it if there is one. Returns the output.
  hidden_view forward(const micro_batch_scope<Engine>& scope, Network& network, layers_of<Network, Activations>& layers,
                      const Input& input, where at) {
    const std::size_t m = scope.micro_batch();
    first_[m].emplace(belay::observe(scope, network.first(), input, at));
    const hidden_view x = first_[m]->out(at);
    if (layers.places.empty()) return x;
    const auto& lowest = layers.places.front();
    if (lowest.recomputed) {
      recomputed_.keep(m, belay::forward(scope, layers.recomputed[lowest.slot], constant(x), at), at);
      return recomputed_.at(m).out();
    }
    plain_.keep(m, belay::forward(scope, *lowest.layer, constant(x), at), at);
    return plain_.at(m).out();
  }
  void backward(std::size_t micro_batch, const layers_of<Network, Activations>& layers, hidden_view dout, where at) {
    if (!layers.places.empty()) {
      if (layers.places.front().recomputed)
        recomputed_.take(micro_batch, at).backward(dout, at);
      else
        plain_.take(micro_batch, at).backward(dout, at);
    }
    first_[micro_batch].reset();
  }

 private:
  using first_type = typename first_of<Network>::type;
  using layer_type = typename layers_of<Network>::layer_type;
  using input_type = constant_input<T, Rank>;

  std::vector<std::optional<observed<Engine, first_type, Input>>> first_;
  handle_store<saved<Engine, layer_type, input_type>> plain_;
  handle_store<saved<Engine, recompute<layer_type>, input_type>> recomputed_;
};

}  // namespace belay::inline BELAY_ABI
