// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A layer is any class with a forward that returns what its backward needs, and a backward that takes it. A layer is
// written against a frame and knows nothing of ranks.
//
//   struct twice {
//     struct residue { belay::view<float, 2> out; };
//     residue forward(auto& frame, belay::view<const float, 2> x) {
//       auto y = belay::keep<float>(frame, x.shape());
//       frame.each(x.size(), belay::kernel::multiple<float>{2, x.data(), y.data()});
//       return {y};
//     }
//     void backward(auto& frame, residue&&, belay::view<const float, 2> dy, belay::view<float, 2> dx);
//   };
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/gradient.hpp"

namespace belay::inline BELAY_ABI {

/// The type that a forward returns: the output and whatever the backward needs.
template <class Layer, class Engine, class Input>
using residue_of =
    decltype(std::declval<Layer&>().forward(std::declval<frame<Engine>&>(), std::declval<const Input&>()));

template <class Layer, class Engine, class Input>
using output_of = std::remove_cvref_t<decltype(std::declval<residue_of<Layer, Engine, Input>&>().out)>;

/// The type of a view with constant elements, which a backward receives.
template <class View>
struct constant_view;
template <class T, std::size_t Rank>
struct constant_view<view<T, Rank>> {
  using type = view<const T, Rank>;
};
template <class View>
using constant_view_t = typename constant_view<View>::type;

/// The element types that have gradients: float, double and bf16.
template <class T>
concept differentiable_element = std::floating_point<T> || std::same_as<T, bf16>;

/// An input that has a gradient: a view of floating-point elements, bf16 included. Its gradient is of the same type.
template <class Input>
concept differentiable = differentiable_element<typename Input::value_type> && !is_constant_input<Input>;

/// `layer.forward(frame, input)` returns something with a view `out`.
template <class Layer, class Engine, class Input>
concept forward_layer =
    requires(Layer& layer, frame<Engine>& call, const Input& input) { layer.forward(call, input).out; };

/// The two forms of a backward, with and without the gradient of the input.
template <class Layer, class Engine, class Input>
concept backward_with_dx =
    requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
             constant_view_t<output_of<Layer, Engine, Input>> dout,
             view<typename Input::value_type, Input::rank> dx) { layer.backward(call, std::move(residue), dout, dx); };
template <class Layer, class Engine, class Input>
concept backward_without_dx =
    requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
             constant_view_t<output_of<Layer, Engine, Input>> dout) { layer.backward(call, std::move(residue), dout); };

/// `layer.backward(frame, residue, dout, dx)`, or without `dx` where the input has no gradient. Of a `constant` input
/// either will do: one that writes `dx` writes what nobody reads.
template <class Layer, class Engine, class Input>
concept backward_layer =
    forward_layer<Layer, Engine, Input> &&
    (differentiable<Input> ? backward_with_dx<Layer, Engine, Input>
                           : backward_without_dx<Layer, Engine, Input> ||
                                 (is_constant_input<Input> && backward_with_dx<Layer, Engine, Input>));

/// Detects a member by its name, whatever its parameters: a name that two bases have is ambiguous.
struct has_both_names {
  /// Never defined.
  void forward();
  void backward();
};
template <class Layer>
struct beside_names : Layer, has_both_names {};

/// Whether a class has any `forward` or `backward`.
template <class Layer>
[[nodiscard]] consteval bool has_forward() {
  if constexpr (!std::is_class_v<Layer>)
    return false;
  else if constexpr (std::is_final_v<Layer>)
    return true;  // unknown: the test would have to derive from it
  else
    return !requires { &beside_names<Layer>::forward; };
}
template <class Layer>
[[nodiscard]] consteval bool has_backward() {
  if constexpr (!std::is_class_v<Layer>)
    return false;
  else if constexpr (std::is_final_v<Layer>)
    return true;
  else
    return !requires { &beside_names<Layer>::backward; };
}

/// Whether a layer's forward can be run. Where it cannot, a static_assert says why.
template <class Layer, class Engine, class Input>
[[nodiscard]] consteval bool runs_forward() {
  constexpr bool named = has_forward<std::remove_const_t<Layer>>();
  constexpr bool called =
      requires(Layer& layer, frame<Engine>& call, const Input& input) { layer.forward(call, input); };
  constexpr bool gives = requires { typename constant_view_t<output_of<Layer, Engine, Input>>; };
  static_assert(named,
                "belay: this layer has no forward: write forward(frame, input), which returns a residue with `out`");
  static_assert(!named || called,
                "belay: this layer's forward does not take this input: it is called as forward(frame, input) with the "
                "frame as an lvalue and the input as it was given");
  static_assert(!called || gives,
                "belay: what this layer's forward returns has no view `out`, which is the layer's output");
  return gives;
}
/// Whether the backward fits the forward.
template <class Layer, class Engine, class Input>
[[nodiscard]] consteval bool runs_backward() {
  constexpr bool forward = runs_forward<Layer, Engine, Input>();
  constexpr bool named = has_backward<std::remove_const_t<Layer>>();
  constexpr bool fits = backward_layer<Layer, Engine, Input>;
  static_assert(
      !forward || named,
      "belay: this layer has no backward: write backward(frame, residue, dout, dx), without dx where the input is "
      "not floating point; or use belay::observe for a forward that owes nothing");
  static_assert(
      !forward || !named || fits,
      "belay: this layer's backward does not fit its forward: it is called as backward(frame, residue, dout, dx) "
      "with what forward returned as an rvalue, dout a view<const T, Rank> like its `out`, dx a view<T, Rank> like "
      "the input; without dx where the input is not floating point");
  return fits;
}

/// A layer whose residue holds obligations of its own. It ends them in `layer.discard(frame, residue, why)`, which is
/// called where the handle is discarded instead of its backward.
template <class Layer, class Engine, class Input>
concept discarding_layer = requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
                                    const char* why) { layer.discard(call, std::move(residue), why); };

/// Whether a backward reads the output of its own forward.
enum class output_use : std::uint8_t { read, unread };

/// A layer whose backward does not read `out` of its residue may say so: `using output_in_backward = belay::unread`.
/// Where the layer is offloaded (step/offloaded_activations.hpp), its output is then not copied, and in the backward it
/// is a view without memory, which faults when read.
struct unread {};
template <class Layer>
inline constexpr output_use output_use_of = output_use::read;
template <class Layer>
  requires std::same_as<typename Layer::output_in_backward, unread>
inline constexpr output_use output_use_of<Layer> = output_use::unread;

/// The base of a wrapper: it says of the wrapper's output what the layer inside says, if anything.
template <class Layer>
struct output_of_wrapped {};
/// A wrapper of a layer that says whether its backward reads its output.
template <class Layer>
  requires requires { typename Layer::output_in_backward; }
struct output_of_wrapped<Layer> {
  using output_in_backward = typename Layer::output_in_backward;
};

/// The layer's name in messages; it must outlive the step.
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

/// How long what a forward returned lives: with the handle, or no longer than the call (a recompute), or apart from
/// its output (what is offloaded, or let go of).
enum class residue_use : std::uint8_t { until_backward, dropped };

/// The output of a call, for `expect_kept`.
struct output_bytes {
  /// Its first byte, the bytes of the call's input, and whether memory that it may lie in is dropped with what the
  /// forward returned.
  const void* first;
  const std::byte* input;
  std::size_t input_bytes;
  bool owner_dropped;
};

/// The part of `expect_kept` that knows no layer.
template <class Engine>
void expect_kept_of(const Engine& engine, const invocation& call, const invocation_memory& memory,
                    const output_bytes& of) {
  const auto& activations = engine.activations();
  if (activations.holds(memory.kept, of.first) || activations.holds(memory.remembered, of.first)) return;
  if (!std::less<>()(of.first, static_cast<const void*>(of.input)) &&
      std::less<>()(of.first, static_cast<const void*>(of.input + of.input_bytes)))
    return;
  const auto refuse = [&](const char* why) {
    throw usage_error("the output of layer " + std::to_string(call.layer_index) + " '" + printable(call.layer) +
                          "' (micro-batch " + std::to_string(call.micro_batch) + ") is " + why +
                          ": make it by belay::keep<T>(frame, shape)",
                      call.at);
  };
  if (engine.is_of_steps(of.first))
    refuse("in memory of the step that its call has not kept, such as scratch or a gathered parameter");
  if (of.owner_dropped)
    refuse("in memory that may be owned by what its forward returned, of which only the output is kept here");
}

/// Throws usage_error, with the layer, where the output of its forward ends before those who read it. It may be in what
/// its call has kept or remembered, in its input, or in memory that outlives the step, such as a parameter, a constant
/// or a buffer of the caller. Memory that the residue may own is no place for the output where the residue is dropped:
/// one that is trivially destructible owns none.
template <class Engine, class Residue, class Input>
void expect_kept(const Engine& engine, const invocation& call, const invocation_memory& memory, const Residue& residue,
                 const Input& input, residue_use use) {
  const void* const first = residue.out.data();
  if (first == nullptr || residue.out.size() == 0) return;
  expect_kept_of(engine, call, memory,
                 {first, reinterpret_cast<const std::byte*>(input.data()), input.size_bytes(),
                  use == residue_use::dropped && !std::is_trivially_destructible_v<Residue>});
}
template <class Engine, class Residue, class Input>
void expect_kept(frame<Engine>& call, const Residue& residue, const Input& input, residue_use use) {
  expect_kept(call.engine(), call.call(), call.memory(), residue, input, use);
}

}  // namespace belay::inline BELAY_ABI
