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

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/ledger.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/layer.hpp"

namespace belay::inline BELAY_ABI {

/// A layer, or a part of one, whose forward is run twice: once for its output alone, and once more for its backward.
template <class Layer>
class repeated_forward {
 public:
  /// `layer` outlives it.
  explicit repeated_forward(Layer& layer) noexcept : layer_(&layer) {}

  /// The layer itself, whose forward runs once where it is called by this.
  [[nodiscard]] Layer& layer() const noexcept { return *layer_; }

  /// The first pass. Its output is kept as `call` keeps things, whatever else it keeps is given back, and `memory` has
  /// what it remembered.
  template <class Engine, class Input>
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input, invocation_memory& memory) {
    auto out = first_pass(call, input, memory);
    auto& activations = call.engine().activations();
    // Where nothing moves, it is remembered, the input's, or memory that outlives the step.
    if (out.size() > 0) static_cast<void>(activations.transfer(out.data(), memory.kept, call.memory().kept));
    activations.release(memory.kept);
    return out;
  }

  /// The forward again, which finds what the first pass remembered in `memory`, and its backward.
  template <class Engine, class Output, class Input, class Dout, class... Dx>
  void backward(frame<Engine>& call, const Output& out, const Input& input, invocation_memory memory, const Dout& dout,
                const Dx&... dx) {
    const obligation_id opened =
        call.open(obligation_kind::recompute_frame, out.size_bytes(), out.shape(), call.call().at);
    memory.kept = {};
    {
      frame<Engine> again{call.engine(), call.call(), frame_mode::replaying, memory};
      [[maybe_unused]] const auto whole = held(again);
      auto full = replay(again, input);
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
  [[nodiscard]] auto first_pass(frame<Engine>& call, const Input& input, invocation_memory& memory) {
    frame<Engine> once{call.engine(), call.call(), frame_mode::observing, memory};
    const auto residue = layer_->forward(once, input);
    expect_kept(once, residue, input, residue_use::dropped);
    return residue.out;
  }
  template <class Engine, class Input>
  [[nodiscard]] auto replay(frame<Engine>& again, const Input& input) {
    const typename Engine::watch_type::mark under_way{again.engine().watch(), again.call().now(layer_call::recompute)};
    return again.call().run(layer_call::recompute, [&] { return layer_->forward(again, input); });
  }

  Layer* layer_;
};

/// Whether a part runs its forward again in its backward.
enum class recomputes { no, yes };

/// The residue that a part keeps for its backward: its own, or its output and input, and where it remembers what it
/// decided.
template <class Input, class Residue>
struct part_residue {
  /// The output, the input, and what the part remembered.
  decltype(std::declval<Residue&>().out) out;
  Input input;
  std::optional<Residue> whole;  // where it is not recomputed
  std::array<std::byte*, invocation_memory::max_remembered> remembered_at{};
  std::size_t remembered_count = 0;
};

/// A part of a layer that can be recomputed alone, such as the attention of a decoder layer, whose intermediate results
/// are many and cheap. The layer keeps it beside the part, and calls it in its place. Whether it recomputes is said
/// when the program runs; inside a layer that is recomputed as a whole it does not recompute twice.
template <class Part>
class recomputed_part {
 public:
  /// `part` outlives it. Nothing is recomputed until `recompute` says so.
  explicit recomputed_part(Part& part) noexcept : again_(part) {}

  /// Between steps.
  void recompute(recomputes how) noexcept { how_ = how; }

  /// In the layer's forward. In a frame that is not the engine's, such as a test's, nothing is recomputed.
  template <class Frame, class Input>
  [[nodiscard]] auto forward(Frame& call, const Input& input) {
    return plain(call, input);
  }
  template <class Engine, class Input>
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input) {
    using residue_type = decltype(again_.layer().forward(call, input));
    if (how_ == recomputes::no || call.replaying() || call.forward_only()) return plain(call, input);
    invocation_memory memory;
    auto out = again_.forward(call, input, memory);
    call.engine().activations().append(memory.remembered, call.memory().kept);
    return part_residue<Input, residue_type>{out, input, std::nullopt, memory.remembered_at, memory.remembered_count};
  }

  /// In its backward.
  template <class Frame, class Input, class Residue, class Dout, class... Dx>
  void backward(Frame& call, part_residue<Input, Residue>&& kept, const Dout& dout, const Dx&... dx) {
    again_.layer().backward(call, std::move(*kept.whole), dout, dx...);
  }
  template <class Engine, class Input, class Residue, class Dout, class... Dx>
  void backward(frame<Engine>& call, part_residue<Input, Residue>&& kept, const Dout& dout, const Dx&... dx) {
    if (kept.whole) return again_.layer().backward(call, std::move(*kept.whole), dout, dx...);
    invocation_memory memory;
    memory.remembered_at = kept.remembered_at;
    memory.remembered_count = kept.remembered_count;
    again_.backward(call, kept.out, kept.input, memory, dout, dx...);
  }

 private:
  template <class Frame, class Input>
  [[nodiscard]] auto plain(Frame& call, const Input& input) {
    auto all = again_.layer().forward(call, input);
    const auto out = all.out;
    return part_residue<Input, decltype(all)>{out, input, std::move(all), {}, 0};
  }

  repeated_forward<Part> again_;
  recomputes how_ = recomputes::no;
};

/// A layer that is recomputed as a whole.
template <class Layer>
class recompute {
  static_assert(
      !requires { typename Layer::offloads_activations; },
      "belay: a recomputed layer keeps its input: offload that, with belay::offloads around the recompute");

 public:
  using output_in_backward = unread;

  /// `layer` outlives this object.
  explicit recompute(Layer& layer) noexcept : again_(layer) {}

  /// Name and number are those of the layer within, which is `layer()`.
  [[nodiscard]] const char* name() const noexcept { return layer_name(layer()); }
  [[nodiscard]] std::size_t index() const noexcept { return layer_index(layer()); }
  [[nodiscard]] Layer& layer() const noexcept { return again_.layer(); }

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
    auto out = again_.forward(call, input, memory);
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
    again_.backward(call, residue.out, residue.input, call.memory(), dout, dx...);
  }

 private:
  repeated_forward<Layer> again_;
};

}  // namespace belay::inline BELAY_ABI
