// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A layer whose activations leave the device between its forward and its backward. It wraps a layer, and is one; the
// layer does not change. What leaves is what the forward has kept, and a copy of the input: so the handle of the layer
// before need not keep its output on the device, and says so with `let_go`.
//
//   belay::offloaded_activations activations{run, belay::tier::host};
//   belay::offloads first{net.first, activations}, second{net.second, activations};
//   auto h = belay::forward(step, first, x);
//   auto y = belay::forward(step, second, h.out());
//   h.let_go();                                       // `second` has its own copy; h.out() is an error from here on
//   belay::recompute lean{block};
//   belay::offloads leaner{lean, activations};        // what leaves is the input of `block` alone
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/offloaded_activations.hpp"  // IWYU pragma: export
#include "belay/step/output_place.hpp"
#include "belay/step/relocation.hpp"             // IWYU pragma: export

namespace belay::inline BELAY_ABI {

// What other rooms ask of a layer, where it says it.
template <class Layer>
struct learning_of_wrapped {};
/// Of a layer around another one.
template <class Layer>
requires requires { typename Layer::learning_type; }
struct learning_of_wrapped<Layer> {
  using learning_type = typename Layer::learning_type;
};

/// `Activations` are an `offloaded_activations`.
template <class Layer, class Activations>
class offloads : public learning_of_wrapped<Layer> {
 public:
  using offloads_activations = void;  // for `recompute`, which is inside

  /// Both outlive it.
  offloads(Layer& layer, Activations& activations) noexcept : layer_(&layer), activations_(&activations) {}

  /// Name, number and parameters are those of the layer within, which is `layer()`.
  [[nodiscard]] const char* name() const noexcept { return layer_name(*layer_); }
  [[nodiscard]] std::size_t index() const noexcept { return layer_index(*layer_); }
  [[nodiscard]] Layer& layer() const noexcept { return *layer_; }
  template <class Visitor>
  requires requires(Layer& layer, Visitor& visit) { layer.for_each_parameter(visit); }
  void for_each_parameter(Visitor&& visit) { layer_->for_each_parameter(visit); }

  /// The residue of an offloaded layer, which is on the device until it has left.
  template <class Output, class Residue>
  struct offloaded_residue {
    /// The output, and all that the layer within kept.
    Output out;
    Residue whole;
    std::uint32_t call;  // its number in the step
  };

  /// A forward that owes nothing keeps nothing, and nothing leaves.
  template <class Engine, class Input>
  requires requires(Layer& layer, frame<Engine>& call, const Input& input) { layer.forward(call, input).out; }
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input) {
    using residue_type = decltype(layer_->forward(call, input));
    using output_type = std::remove_cvref_t<decltype(std::declval<residue_type&>().out)>;
    constexpr bool moves = relocatable<residue_type>;
    static_assert(moves,
                  "belay: what this layer's forward returns holds something that is neither a view nor a number, and "
                  "cannot be told where its memory is when that has come back: give the class of it "
                  "`void relocate(const belay::relocation& to)`, which calls to(member) for each view in it");
    residue_type whole = layer_->forward(call, input);
    if (!call.forward_only()) expect_kept(call, whole, input, residue_use::dropped);
    const output_type out = whole.out;
    std::uint32_t number = Activations::nothing;
    if constexpr (moves) {
      // An input without gradient is no layer's output, and stays where it is.
      std::span<const std::byte> from;
      if constexpr (differentiable<Input>) from = std::as_bytes(input.flat());
      if (!call.forward_only() && !call.replaying())
        number = activations_->offload(call, std::as_bytes(out.flat()), output_use_of<Layer>, from);
    }
    return offloaded_residue<output_type, residue_type>{out, std::move(whole), number};
  }

  /// That of the layer within, after what it kept has come back.
  template <class Engine, class Output, class Residue, class Dout, class... Dx>
  requires requires(Layer& layer, frame<Engine>& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    layer.backward(call, std::move(residue), dout, dx...);
  }
  void backward(frame<Engine>& call, offloaded_residue<Output, Residue>&& residue, const Dout& dout, const Dx&... dx) {
    restore(call, residue);
    layer_->backward(call, std::move(residue.whole), dout, dx...);
    activations_->end(residue.call);
  }

  /// Ends the layer's obligations without a backward.
  template <class Engine, class Output, class Residue>
  void discard(frame<Engine>& call, offloaded_residue<Output, Residue>&& residue, const char* why) {
    if constexpr (requires { layer_->discard(call, std::move(residue.whole), why); }) {
      restore(call, residue);
      layer_->discard(call, std::move(residue.whole), why);
      activations_->end(residue.call);
    } else {
      activations_->drop(residue.call, call.call().at);
    }
  }

  /// For a handle: whoever read its output has it.
  template <class Output, class Residue>
  void let_go(const offloaded_residue<Output, Residue>& residue, invocation_memory& memory) {
    activations_->let_go(residue.call, memory.kept);
  }

 private:
  template <class Engine, class Output, class Residue>
  void restore(frame<Engine>& call, offloaded_residue<Output, Residue>& residue) {
    if constexpr (relocatable<Residue>) {
      const relocation to = activations_->restore(residue.call, call.call().at);
      to(residue.whole);
      invocation_memory& memory = call.memory();
      for (std::size_t i = 0; i < memory.remembered_count; ++i) to(memory.remembered_at[i]);
    }
  }

  Layer* layer_;
  Activations* activations_;
};

}  // namespace belay::inline BELAY_ABI
