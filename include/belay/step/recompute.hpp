// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Activation checkpointing: a layer whose forward keeps its output alone, and is run again in its backward. The
// recompute is a child of the invocation that it repeats: it is opened and ended by the backward, so there is no
// counter of forwards and backwards. What the first pass remembered, such as routing, is read again and not decided
// anew.
//
//   belay::recompute cheap{block};                    // wraps a layer, and is one
//   auto y = belay::forward(step, cheap, x);          // keeps y alone
//   auto dx = std::move(y).backward(dout);            // runs the forward of `block` again, then its backward
#pragma once

#include <cstddef>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/output_place.hpp"

namespace belay::inline BELAY_ABI {

template <class Layer>
class recompute {
  static_assert(
      !requires { typename Layer::offloads_activations; },
      "belay: a recomputed layer keeps its input: offload that, with belay::offloads around the recompute");

 public:
  using output_in_backward = unread;

  /// `layer` outlives this object.
  explicit recompute(Layer& layer) noexcept : layer_(&layer) {}

  /// Name and number are those of the layer within, which is `layer()`.
  [[nodiscard]] const char* name() const noexcept { return layer_name(*layer_); }
  [[nodiscard]] std::size_t index() const noexcept { return layer_index(*layer_); }
  [[nodiscard]] Layer& layer() const noexcept { return *layer_; }

  /// The residue of a recomputed layer, kept until the backward.
  template <class Input, class Output>
  struct recomputed_residue {
    /// Output and input: no more.
    Output out;
    Input input;
  };

  /// That of the layer within; what it keeps is given back, and what it remembers stays.
  template <class Engine, class Input>
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input) {
    invocation_memory memory;
    auto out = first_pass(call, input, memory);
    auto& activations = call.engine().activations();
    // Where nothing moves, it is remembered, the input's, or memory that outlives the step.
    if (out.size() > 0) static_cast<void>(activations.transfer(out.data(), memory.kept, call.memory().kept));
    activations.release(memory.kept);
    call.memory().remembered = memory.remembered;
    call.memory().remembered_at = memory.remembered_at;
    call.memory().remembered_count = memory.remembered_count;
    return recomputed_residue<Input, decltype(out)>{out, input};
  }

  /// The forward again, and its backward.
  template <class Engine, class Input, class Output, class Dout, class... Dx>
  requires requires(Layer& layer, frame<Engine>& call, const Input& input, const Dout& dout, const Dx&... dx) {
    layer.backward(call, layer.forward(call, input), dout, dx...);
  }
  void backward(frame<Engine>& call, recomputed_residue<Input, Output>&& residue, const Dout& dout, const Dx&... dx) {
    const obligation_id opened =
        call.open(obligation_kind::recompute_frame, residue.out.size_bytes(), residue.out.shape(), call.call().at);
    invocation_memory memory = call.memory();
    memory.kept = {};
    {
      frame<Engine> again{call.engine(), call.call(), frame_mode::replaying, memory};
      [[maybe_unused]] const auto whole = held(again);
      auto full = replay(again, residue.input);
      again.begin_backward_within(call);
      layer_->backward(again, std::move(full), dout, dx...);
    }
    call.engine().activations().release(memory.kept);
    call.close(opened);
  }

 private:
  struct no_hold {};
  // A layer that is called with something of its own for the time, such as `gathers`, has it for both calls.
  template <class Frame>
  [[nodiscard]] auto held(Frame& call) const {
    if constexpr (requires { layer_->hold(call); })
      return layer_->hold(call);
    else
      return no_hold{};
  }

  template <class Engine, class Input>
  [[nodiscard]] auto replay(frame<Engine>& again, const Input& input) {
    const typename Engine::watch_type::mark under_way{again.engine().watch(), again.call().now(layer_call::recompute)};
    return again.call().run(layer_call::recompute, [&] { return layer_->forward(again, input); });
  }
  template <class Engine, class Input>
  [[nodiscard]] auto first_pass(frame<Engine>& call, const Input& input, invocation_memory& memory) {
    frame<Engine> once{call.engine(), call.call(), frame_mode::observing, memory};
    const auto residue = layer_->forward(once, input);
    expect_kept(once, residue, input, residue_use::dropped);
    return residue.out;
  }

  Layer* layer_;
};

}  // namespace belay::inline BELAY_ABI
