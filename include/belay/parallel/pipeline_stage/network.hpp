// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a network offers to a stage of a pipeline, and what the stage needs of it: its layers, the inputs of its
// micro-batches and their loss.
// IWYU pragma: private, include "belay/parallel/pipeline_stage.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <deque>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/offloaded_activations.hpp"
#include "belay/step/recompute.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// A network, or the part of one that a stage runs. `layers()` is a range of layers of one class, which stay where they
/// are. It may offer `first()`, which takes a micro-batch's input and runs before the layers of the first stage, such
/// as an embedding (observed, where it is frozen), and `last()`, which runs after those of the last one, such as a
/// head. Where it can say whether it has them (`has_embedding()`, `has_head()`), that is compared with the stage's
/// place.
template <class N>
concept offers_layers = requires(N& network) {
  requires std::is_lvalue_reference_v<decltype(*std::begin(network.layers()))>;
  std::end(network.layers());
  // A container that is returned by value would take its layers with it; a span does not.
  requires std::is_lvalue_reference_v<decltype(network.layers())> ||
               std::is_trivially_copyable_v<decltype(network.layers())>;
};
/// Whether a network offers its layers, as a value, for a message without the list of what is missing.
template <class N>
inline constexpr bool is_offering_layers = offers_layers<N>;

template <class N>
concept offers_first = requires(N& network) { network.first(); };
/// The first layer is never trained, and says so: `using learning_type = belay::frozen`.
template <class N>
concept freezes_first =
    offers_first<N> && !has_gradient<layer_learning_t<std::remove_reference_t<decltype(std::declval<N&>().first())>>>;
template <class N>
concept offers_last = requires(N& network) { network.last(); };

/// A layer as a stage runs it: itself, or with its activations in a lower tier.
template <class Layer, class Activations>
struct layer_in_stage {
  using type = offloads<Layer, Activations>;
};
template <class Layer>
struct layer_in_stage<Layer, void> {
  using type = Layer;
};
template <class Activations>
struct layer_in_stage<void, Activations> {
  using type = void;
};
template <>
struct layer_in_stage<void, void> {
  using type = void;
};
template <class Layer, class Activations>
using layer_in_stage_t = typename layer_in_stage<Layer, Activations>::type;

/// The layers of a stage, each as the stage runs it, whatever the engine. `Activations` are an `offloaded_activations`,
/// or void.
template <class Network, class Activations = void>
struct layers_of {
  using layer_type = std::remove_reference_t<decltype(*std::begin(std::declval<Network&>().layers()))>;
  using plain_type = layer_in_stage_t<layer_type, Activations>;
  using lean_type = layer_in_stage_t<recompute<layer_type>, Activations>;
  // A layer, and the slot of its handles among those of its kind.
  struct layer_slot {
    layer_type* layer;
    std::size_t slot;
    bool recomputed;
  };

  std::vector<layer_slot> places;
  std::deque<recompute<layer_type>> recomputed;  // by slot
  Activations* activations = nullptr;
  std::deque<plain_type> plain_away;  // by slot, where there are activations
  std::deque<lean_type> lean_away;

  void add(layer_type& layer, recomputes how) {
    const bool again = how == recomputes::yes;
    places.push_back({&layer, again ? recomputed.size() : places.size() - recomputed.size(), again});
    if (again) recomputed.emplace_back(layer);
    if constexpr (!std::is_void_v<Activations>) {
      if (again)
        lean_away.emplace_back(recomputed.back(), *activations);
      else
        plain_away.emplace_back(layer, *activations);
    }
  }
  [[nodiscard]] plain_type& plain(const layer_slot& of) noexcept {
    if constexpr (std::is_void_v<Activations>)
      return *of.layer;
    else
      return plain_away[of.slot];
  }
  [[nodiscard]] lean_type& lean(const layer_slot& of) noexcept {
    if constexpr (std::is_void_v<Activations>)
      return recomputed[of.slot];
    else
      return lean_away[of.slot];
  }
};

template <class Network>
struct first_of {
  using type = void;
};
template <offers_first Network>
struct first_of<Network> {
  using type = std::remove_reference_t<decltype(std::declval<Network&>().first())>;
};
template <class Network>
struct last_of {
  using type = void;
};
template <offers_last Network>
struct last_of<Network> {
  using type = std::remove_reference_t<decltype(std::declval<Network&>().last())>;
};

/// Whether the first layer can be run: a frozen one forwards alone, and what is above it without an input gradient.
template <class Network, class Engine, class T, std::size_t Rank, class Input>
[[nodiscard]] consteval bool runs_as_first() {
  using first_type = typename first_of<Network>::type;
  if constexpr (freezes_first<Network>)
    return runs_forward<first_type, Engine, Input>() &&
           runs_backward<typename layers_of<Network>::layer_type, Engine, constant_input<T, Rank>>();
  else
    return runs_backward<first_type, Engine, Input>();
}

/// Whether a stage can run a network's layers between tensors of T. Where it cannot, a static_assert says why.
template <class Network, class Engine, class T, std::size_t Rank, class Input>
[[nodiscard]] consteval bool runs_as_network() {
  using hidden = view<const T, Rank>;
  using layer_type = typename layers_of<Network>::layer_type;
  if constexpr (!runs_backward<layer_type, Engine, hidden>()) {
    return false;
  } else {
    constexpr bool same = std::same_as<constant_view_t<output_of<layer_type, Engine, hidden>>, hidden>;
    static_assert(
        same,
        "belay: a layer of a pipeline stage gives a tensor like the one that it takes, a view<T, Rank> of the "
        "pipeline's boundary: what has another shape is the network's first() or last()");
    bool fits = same;
    if constexpr (offers_first<Network>) {
      using first_type = typename first_of<Network>::type;
      if constexpr (runs_as_first<Network, Engine, T, Rank, Input>()) {
        constexpr bool joins = std::same_as<constant_view_t<output_of<first_type, Engine, Input>>, hidden>;
        static_assert(joins, "belay: what the network's first() gives is not what its layers take");
        fits = fits && joins;
      } else {
        fits = false;
      }
    } else {
      constexpr bool taken = std::convertible_to<Input, hidden>;
      static_assert(taken,
                    "belay: the network offers no first(), so its layers take the inputs of the pipeline, and these "
                    "are no tensors of its boundary");
      fits = fits && taken;
    }
    if constexpr (offers_last<Network>) fits = fits && runs_backward<typename last_of<Network>::type, Engine, hidden>();
    return fits;
  }
}

/// Inputs of a step: a view whose first axis is the micro-batch, or a function of its number.
template <class Inputs>
inline constexpr bool is_batch_view = false;
template <class T, std::size_t Rank>
inline constexpr bool is_batch_view<view<T, Rank>> = Rank > 1;
template <class Inputs>
concept gives_micro_batches =
    is_batch_view<Inputs> || requires(const Inputs& inputs, std::size_t micro_batch) { inputs(micro_batch).shape(); };

/// The input of one micro-batch. That of a batch of floating point has no gradient.
template <gives_micro_batches Inputs>
[[nodiscard]] auto input_of(const Inputs& inputs, std::size_t micro_batch) {
  if constexpr (!is_batch_view<Inputs>)
    return inputs(micro_batch);
  else if constexpr (differentiable_element<typename Inputs::value_type>)
    return constant(constant_view_t<decltype(inputs[micro_batch])>(inputs[micro_batch]));
  else
    return constant_view_t<decltype(inputs[micro_batch])>(inputs[micro_batch]);
}
template <gives_micro_batches Inputs>
void expect_micro_batches(const Inputs& inputs, std::size_t count, where at) {
  if constexpr (is_batch_view<Inputs>)
    if (inputs.extent(0) < count)
      throw usage_error("the inputs of a pipeline have " + std::to_string(inputs.extent(0)) +
                            " micro-batches, and its schedule runs " + std::to_string(count),
                        at);
}

/// The type of the last stage's output, from which the loss is computed.
template <class Network, class Engine, class T, std::size_t Rank>
struct output_of_network {
  using type = view<const T, Rank>;
};
template <offers_last Network, class Engine, class T, std::size_t Rank>
struct output_of_network<Network, Engine, T, Rank> {
  using type = constant_view_t<output_of<typename last_of<Network>::type, Engine, view<const T, Rank>>>;
};

/// Whether a loss can be called, and gives a gradient. Where it is not, a static_assert says why.
template <class Network, class Loss, class Engine, class T, std::size_t Rank>
[[nodiscard]] consteval bool gives_loss() {
  using output_type = typename output_of_network<Network, Engine, T, Rank>::type;
  constexpr bool gives = requires(const Loss& loss, const micro_batch_scope<Engine>& scope, output_type y) {
    { loss(scope, y).gradient } -> std::convertible_to<output_type>;
  };
  static_assert(gives,
                "belay: the loss of a pipeline is called as loss(scope, output) with what the last stage puts out, and "
                "returns what belay::cross_entropy(scope, output, targets) does: `gradient` has the output's shape");
  return gives;
}

}  // namespace belay::inline BELAY_ABI
