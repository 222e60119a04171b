// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a layer is: any class with a forward that returns what its backward needs, and a backward that takes it.
// A layer is written against a frame and knows nothing of ranks.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/step/frame.hpp"

namespace belay::inline BELAY_ABI {

/// What a forward returns: the output and whatever the backward needs.
template <class Layer, class Engine, class Input>
using residue_of =
    decltype(std::declval<Layer&>().forward(std::declval<frame<Engine>&>(), std::declval<const Input&>()));

template <class Layer, class Engine, class Input>
using output_of = std::remove_cvref_t<decltype(std::declval<residue_of<Layer, Engine, Input>&>().out)>;

/// The same view, of constant elements: what a backward receives.
template <class View>
struct constant_view;
template <class T, std::size_t Rank>
struct constant_view<view<T, Rank>> {
  using type = view<const T, Rank>;
};
template <class View>
using constant_view_t = typename constant_view<View>::type;

/// An input that has a gradient: a view of floating-point elements.
template <class Input>
concept differentiable = std::floating_point<typename Input::value_type>;

template <class Layer, class Engine, class Input>
concept forward_layer = requires(Layer& layer, frame<Engine>& call, const Input& input) {
  layer.forward(call, input).out;
};

/// `layer.backward(frame, residue, dout, dx)`, or without `dx` where the input has no gradient.
template <class Layer, class Engine, class Input>
concept backward_layer = forward_layer<Layer, Engine, Input> &&
    (differentiable<Input>
         ? requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
                    constant_view_t<output_of<Layer, Engine, Input>> dout,
                    view<typename Input::value_type,
                         std::tuple_size_v<std::remove_cvref_t<decltype(std::declval<Input>().shape())>>>
                        dx) { layer.backward(call, std::move(residue), dout, dx); }
         : requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
                    constant_view_t<output_of<Layer, Engine, Input>> dout) {
             layer.backward(call, std::move(residue), dout);
           });

/// A layer whose residue holds debts of its own ends them in `layer.discard(frame, residue, why)`, when the handle is
/// discarded instead of going backward.
template <class Layer, class Engine, class Input>
concept discarding_layer = requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
                                    const char* why) { layer.discard(call, std::move(residue), why); };

/// The name that messages give a layer; it must outlive the step.
template <class Layer>
[[nodiscard]] const char* layer_name(const Layer& layer) noexcept {
  if constexpr (requires {
                  { layer.name() } -> std::convertible_to<const char*>;
                })
    return layer.name();
  else
    return "unnamed";
}

/// The layer's place in its model, from 0; 0 where it has none.
template <class Layer>
[[nodiscard]] std::size_t layer_index(const Layer& layer) noexcept {
  if constexpr (requires {
                  { layer.index() } -> std::convertible_to<std::size_t>;
                })
    return layer.index();
  else
    return 0;
}

}  // namespace belay::inline BELAY_ABI
