// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The handles of a stage's micro-batches, between forward and backward.
// IWYU pragma: private, include "belay/parallel/pipeline_stage.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/parallel/pipeline_stage/network.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/handle_store.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/recompute.hpp"
#include "belay/step/saved.hpp"
#include "belay/step/step.hpp"
#include "belay/step/weight_half.hpp"

namespace belay::inline BELAY_ABI {

/// The part of a backward that is asked for: all of it, or the gradient of the input alone, with weights to come.
enum class backward_extent : std::uint8_t { whole, input_alone };

/// The handles of one kind of layer between forward and backward, and between the halves of a backward, by slot.
template <class Engine, class Layer, class Input>
class layer_handles {
 public:
  /// So many slots. Those of second halves are made when the first one is to be kept.
  explicit layer_handles(std::size_t slot_count) : whole_(slot_count) {}

  void keep(std::size_t slot, saved<Engine, Layer, Input>&& handle, where at) {
    whole_.keep(slot, std::move(handle), at);
  }
  [[nodiscard]] saved<Engine, Layer, Input>& at(std::size_t slot) { return whole_.at(slot); }
  /// The handle, whose output a loss needs before its backward.
  BELAY_OPENS [[nodiscard]] saved<Engine, Layer, Input> take(std::size_t slot, where at) {
    return whole_.take(slot, at);
  }

  /// Runs the backward of a slot, or of a handle that was taken from it, and returns the gradient of the input, where
  /// there is one.
  auto backward(std::size_t slot, const auto& dout, backward_extent how, where at) {
    return backward(slot, whole_.take(slot, at), dout, how, at);
  }
  auto backward(std::size_t slot, saved<Engine, Layer, Input>&& handle, const auto& dout, backward_extent how,
                where at) {
    if (how == backward_extent::whole) return std::move(handle).backward(dout, at);
    if (!halves_) halves_.emplace(whole_.size());
    halves_->keep(slot, std::move(handle).backward_input(dout, at), at);
    if constexpr (differentiable<Input>) return halves_->at(slot).input_gradient(at);
  }
  void weights(std::size_t slot, where at) { halves_->take(slot, at).weights(at); }

 private:
  handle_store<saved<Engine, Layer, Input>> whole_;
  std::optional<handle_store<weight_half<Engine, Layer, Input>>> halves_;
};

/// The handles of a stage's frozen first layer and of the lowest layer that is trained, by micro-batch. These two stay
/// on the device, also where the activations of others are offloaded.
/// The first stage of a network whose first() is frozen: that is observed, and the layer above it gets an input without
/// a gradient.
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
  void backward(std::size_t micro_batch, const layers_of<Network, Activations>& layers, hidden_view dout,
                backward_extent how, where at) {
    if (!layers.places.empty()) {
      if (layers.places.front().recomputed)
        recomputed_.backward(micro_batch, dout, how, at);
      else
        plain_.backward(micro_batch, dout, how, at);
    }
    first_[micro_batch].reset();
  }
  void weights(std::size_t micro_batch, const layers_of<Network, Activations>& layers, where at) {
    if (layers.places.empty()) return;
    if (layers.places.front().recomputed)
      recomputed_.weights(micro_batch, at);
    else
      plain_.weights(micro_batch, at);
  }

 private:
  using first_type = typename first_of<Network>::type;
  using layer_type = typename layers_of<Network>::layer_type;
  using input_type = constant_input<T, Rank>;

  std::vector<std::optional<observed<Engine, first_type, Input>>> first_;
  layer_handles<Engine, layer_type, input_type> plain_;
  layer_handles<Engine, recompute<layer_type>, input_type> recomputed_;
};

/// Handles of one layer of each micro-batch; of a layer that the network does not offer, none.
template <class Engine, class Layer, class Input>
struct handles_of_layer {
  using type = layer_handles<Engine, Layer, Input>;
};
template <class Engine, class Input>
struct handles_of_layer<Engine, void, Input> {
  struct type {
    explicit type(std::size_t) noexcept {}
  };
};

/// Handles of the first layer.
template <class Network, class Engine, class T, std::size_t Rank, class Input, class Activations>
struct handles_of_first
    : handles_of_layer<Engine, layer_in_stage_t<typename first_of<Network>::type, Activations>, Input> {};
template <freezes_first Network, class Engine, class T, std::size_t Rank, class Input, class Activations>
struct handles_of_first<Network, Engine, T, Rank, Input, Activations> {
  using type = frozen_first_handles<Network, Engine, T, Rank, Input, Activations>;
};

/// The handles of a stage's micro-batches, with tensors of T between layers and stages. A slot for every micro-batch;
/// what a step has left there that ended before all was run owes nothing any more, and is overwritten. Where
/// activations are offloaded, a layer's output is let go of when the next one has run: the last layer's when it has
/// been sent.
template <class Network, class Engine, class T, std::size_t Rank, class Input, class Activations = void>
class stage_handles {
 public:
  using hidden_view = view<const T, Rank>;
  using scope_type = micro_batch_scope<Engine>;

  using layers_type = layers_of<Network, Activations>;

  stage_handles(Network& network, layers_type& layers, const schedule::position& place)
      : network_(&network),
        layers_(&layers),
        place_(place),
        flights_(place.micro_batches),
        first_(place.first() ? place.micro_batches : 0),
        plain_(place.micro_batches * (layers.places.size() - layers.recomputed.size())),
        recomputed_(place.micro_batches * layers.recomputed.size()),
        last_(place.last() ? place.micro_batches : 0) {
    if constexpr (offloads_first)
      if (place.first()) first_away_.emplace(network.first(), *layers.activations);
  }
  stage_handles(const stage_handles&) = delete;
  stage_handles& operator=(const stage_handles&) = delete;

  [[nodiscard]] const schedule::position& place() const noexcept { return place_; }

  /// `input(micro_batch)` is asked on the first stage.
  template <class Inputs>
  void forward(const scope_type& scope, hidden_view x, const Inputs& input, where at) {
    const std::size_t m = scope.micro_batch();
    std::size_t done = 0;
    if (place_.first()) {
      if constexpr (freezes_first<Network>) {
        x = first_.forward(scope, *network_, *layers_, input(m), at);
        done = layers_below();
      } else if constexpr (offers_first<Network>) {
        if constexpr (offloads_first)
          first_.keep(m, belay::forward(scope, *first_away_, input(m), at), at);
        else
          first_.keep(m, belay::forward(scope, network_->first(), input(m), at), at);
        x = first_.at(m).out();
      } else {
        x = input(m);
      }
    }
    for (std::size_t i = done; i < layers_->places.size(); ++i) {
      const auto& one = layers_->places[i];
      if (one.recomputed) {
        const std::size_t index = recomputed_slot(m, one.slot);
        recomputed_.keep(index, belay::forward(scope, layers_->lean(one), x, at), at);
        x = recomputed_.at(index).out();
      } else {
        const std::size_t index = plain_slot(m, one.slot);
        plain_.keep(index, belay::forward(scope, layers_->plain(one), x, at), at);
        x = plain_.at(index).out();
      }
      if constexpr (offloads_layers) {
        if (i > done) let_go(m, i - 1, at);
        if constexpr (offloads_first)
          if (i == 0 && place_.first()) first_.at(m).let_go(at);
      }
    }
    flights_[m].output = x;
    if constexpr (offers_last<Network>)
      if (place_.last()) last_.keep(m, belay::forward(scope, network_->last(), x, at), at);
  }

  /// `loss(scope, output)` is asked on the last stage: its value and its gradient are one pass over the output.
  template <class Loss>
  void backward(const scope_type& scope, hidden_view dout, const Loss& loss, where at,
                backward_extent how = backward_extent::whole) {
    const std::size_t m = scope.micro_batch();
    flight& one = flights_[m];
    if (place_.last()) {
      if constexpr (offers_last<Network>) {
        auto handle = last_.take(m, at);
        const auto top = loss(scope, handle.out(at));
        one.gradient.emplace(last_.backward(m, std::move(handle), top.gradient, how, at));
      } else {
        one.gradient.emplace(loss(scope, one.output).gradient);
      }
      dout = *one.gradient;
    }
    for (std::size_t i = layers_->places.size(); i-- > layers_below();) {
      const auto& [layer, slot, again] = layers_->places[i];
      if (again)
        one.gradient.emplace(recomputed_.backward(recomputed_slot(m, slot), dout, how, at));
      else
        one.gradient.emplace(plain_.backward(plain_slot(m, slot), dout, how, at));
      dout = *one.gradient;
    }
    if constexpr (freezes_first<Network>) {
      if (place_.first()) first_.backward(m, *layers_, dout, how, at);
    } else if constexpr (offers_first<Network>)
      if (place_.first()) static_cast<void>(first_.backward(m, dout, how, at));
  }
  /// The second halves of a micro-batch's backwards.
  void weights(std::size_t m, where at) {
    if constexpr (offers_last<Network>)
      if (place_.last()) last_.weights(m, at);
    for (std::size_t i = layers_->places.size(); i-- > layers_below();) {
      const auto& [layer, slot, again] = layers_->places[i];
      if (again)
        recomputed_.weights(recomputed_slot(m, slot), at);
      else
        plain_.weights(plain_slot(m, slot), at);
    }
    if constexpr (freezes_first<Network>) {
      if (place_.first()) first_.weights(m, *layers_, at);
    } else if constexpr (offers_first<Network>)
      if (place_.first()) first_.weights(m, at);
  }

  [[nodiscard]] hidden_view output(std::size_t micro_batch) const noexcept { return flights_[micro_batch].output; }
  [[nodiscard]] hidden_view input_gradient(std::size_t micro_batch) const noexcept {
    return *flights_[micro_batch].gradient;
  }
  void release(std::size_t micro_batch) noexcept { flights_[micro_batch].gradient.reset(); }

  /// A pipeline says that a micro-batch's output has been sent, or that its input, which `memory` holds, was used in
  /// its forward: where layers are offloaded, they have copies.
  void let_go_of_output(std::size_t micro_batch, where at) {
    if constexpr (offloads_layers)
      if (layers_->places.size() > layers_below()) let_go(micro_batch, layers_->places.size() - 1, at);
  }
  void let_go_of_input(lease_chain& memory) {
    if constexpr (offloads_layers)
      if (layers_->places.size() > layers_below()) layers_->activations->let_go(memory);
  }

 private:
  static constexpr bool offloads_layers = !std::is_void_v<Activations>;
  static constexpr bool offloads_first = offloads_layers && belay::offers_first<Network> && !freezes_first<Network>;
  struct nothing {};
  template <bool Offloads, class Layer>
  struct when {
    using type = std::optional<layer_in_stage_t<Layer, Activations>>;
  };
  template <class Layer>
  struct when<false, Layer> {
    using type = nothing;
  };

  void let_go(std::size_t micro_batch, std::size_t number, where at) {
    const auto& one = layers_->places[number];
    if (one.recomputed)
      recomputed_.at(recomputed_slot(micro_batch, one.slot)).let_go(at);
    else
      plain_.at(plain_slot(micro_batch, one.slot)).let_go(at);
  }

  // What crosses to the stages beside, of one micro-batch between its forward and its backward.
  struct flight {
    std::optional<belay::gradient<Engine, T, Rank>> gradient;
    hidden_view output;
  };

  // Layers that the handles of a frozen first layer run: the lowest one.
  [[nodiscard]] std::size_t layers_below() const noexcept {
    return freezes_first<Network> && place_.first() && !layers_->places.empty() ? 1 : 0;
  }
  [[nodiscard]] std::size_t plain_slot(std::size_t micro_batch, std::size_t slot) const noexcept {
    return micro_batch * (layers_->places.size() - layers_->recomputed.size()) + slot;
  }

  [[nodiscard]] std::size_t recomputed_slot(std::size_t micro_batch, std::size_t slot) const noexcept {
    return micro_batch * layers_->recomputed.size() + slot;
  }

  Network* network_;
  layers_type* layers_;
  schedule::position place_;
  std::vector<flight> flights_;
  typename when<offloads_first, typename first_of<Network>::type>::type first_away_;
  typename handles_of_first<Network, Engine, T, Rank, Input, Activations>::type first_;
  layer_handles<Engine, typename layers_type::plain_type, hidden_view> plain_;
  layer_handles<Engine, typename layers_type::lean_type, hidden_view> recomputed_;
  typename handles_of_layer<Engine, typename last_of<Network>::type, hidden_view>::type last_;
};

}  // namespace belay::inline BELAY_ABI
