// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A part of a layer that can be recomputed alone, such as the attention of a decoder layer, whose intermediate results
// are many and cheap. The layer keeps it beside the part, and calls it in its place. Whether it recomputes is said when
// the program runs; inside a layer that is recomputed as a whole it does not recompute twice.
//
//   struct decoder_layer {
//     attention heads;
//     belay::recomputed_part<attention> kept_heads{heads};
//     ...
//     auto attended = kept_heads.forward(frame, x);                              // in forward: a part_residue
//     kept_heads.backward(frame, std::move(r.attended), dout, dx);               // in backward
//   };
//   layer.kept_heads.recompute(belay::recomputes::yes);
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/obligation.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/output_place.hpp"

namespace belay::inline BELAY_ABI {

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

template <class Part>
class recomputed_part {
 public:
  /// `part` outlives it. Nothing is recomputed until `recompute` says so.
  explicit recomputed_part(Part& part) noexcept : part_(&part) {}

  /// Between steps.
  void recompute(recomputes how) noexcept { how_ = how; }

  /// In the layer's forward. In a frame that is not the engine's, such as a test's, nothing is recomputed.
  template <class Frame, class Input>
  [[nodiscard]] auto forward(Frame& call, const Input& input) {
    return plain(call, input);
  }
  template <class Engine, class Input>
  [[nodiscard]] auto forward(frame<Engine>& call, const Input& input) {
    using residue_type = decltype(part_->forward(call, input));
    if (how_ == recomputes::no || call.replaying() || call.forward_only()) return plain(call, input);
    invocation_memory memory;
    part_residue<Input, residue_type> kept{first_pass(call, input, memory), input, std::nullopt, memory.remembered_at,
                                           memory.remembered_count};
    auto& activations = call.engine().activations();
    lease_chain& until_backward = call.memory().kept;
    // Where nothing moves, it is remembered, the input's, or memory that outlives the step.
    if (kept.out.size() > 0) static_cast<void>(activations.transfer(kept.out.data(), memory.kept, until_backward));
    activations.append(memory.remembered, until_backward);
    activations.release(memory.kept);
    return kept;
  }

  /// In its backward.
  template <class Frame, class Input, class Residue, class Dout, class... Dx>
  void backward(Frame& call, part_residue<Input, Residue>&& kept, const Dout& dout, const Dx&... dx) {
    part_->backward(call, std::move(*kept.whole), dout, dx...);
  }
  template <class Engine, class Input, class Residue, class Dout, class... Dx>
  void backward(frame<Engine>& call, part_residue<Input, Residue>&& kept, const Dout& dout, const Dx&... dx) {
    if (kept.whole) return part_->backward(call, std::move(*kept.whole), dout, dx...);
    const obligation_id opened =
        call.open(obligation_kind::recompute_frame, kept.out.size_bytes(), kept.out.shape(), call.call().at);
    invocation_memory memory;
    memory.remembered_at = kept.remembered_at;
    memory.remembered_count = kept.remembered_count;
    {
      frame<Engine> again{call.engine(), call.call(), frame_mode::replaying, memory};
      auto full = replay(again, kept.input);
      again.begin_backward_within(call);
      part_->backward(again, std::move(full), dout, dx...);
    }
    call.engine().activations().release(memory.kept);
    call.close(opened);
  }

 private:
  template <class Frame, class Input>
  [[nodiscard]] auto plain(Frame& call, const Input& input) {
    auto all = part_->forward(call, input);
    const auto out = all.out;
    return part_residue<Input, decltype(all)>{out, input, std::move(all), {}, 0};
  }
  template <class Engine, class Input>
  [[nodiscard]] auto first_pass(frame<Engine>& call, const Input& input, invocation_memory& memory) {
    frame<Engine> once{call.engine(), call.call(), frame_mode::observing, memory};
    const auto residue = part_->forward(once, input);
    expect_kept(once, residue, input, residue_use::dropped);
    return residue.out;
  }
  template <class Engine, class Input>
  [[nodiscard]] auto replay(frame<Engine>& again, const Input& input) {
    const typename Engine::watch_type::mark under_way{again.engine().watch(), again.call().now(layer_call::recompute)};
    return again.call().run(layer_call::recompute, [&] { return part_->forward(again, input); });
  }

  Part* part_;
  recomputes how_ = recomputes::no;
};

}  // namespace belay::inline BELAY_ABI
