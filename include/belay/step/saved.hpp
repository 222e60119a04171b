// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A saved activation owes one backward. The handle is move-only and belongs to a step. A forgotten one is a compile
// error where the compiler can see it (Clang's consumed analysis, nodiscard, the typed tape), and elsewhere an entry
// of the ledger with its name. Its memory ends with the step in any case. A handle stays where the forward has made
// it: no container, pointer, capture or by-value parameter takes it from a name. `handle_store` keeps several.
//
//   auto hidden = belay::forward(step, layer, x);        // belay::saved<...>
//   use(hidden.out());
//   auto dx = std::move(hidden).backward(dout);          // or std::move(hidden).discard("why")
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/view.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/handle_calls.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/weight_half.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class Layer, class Input>
  requires backward_layer<Layer, Engine, Input>
class [[nodiscard("belay: the result of a forward owes a backward")]] BELAY_OBLIGATION saved final {
 public:
  using residue_type = residue_of<Layer, Engine, Input>;
  using output_type = constant_view_t<output_of<Layer, Engine, Input>>;

  /// Runs the layer's forward and opens the obligation. Use `belay::forward`.
  BELAY_OPENS saved(Engine& engine, Layer& layer, const Input& input, const invocation& call)
      : engine_(&engine), layer_(&layer), input_(input), call_(call), residue_(run_forward()), epoch_(engine.epoch()) {
    if constexpr (checked(check_level::local)) {
      expect_kept(engine, call_, memory_, residue_, input_, residue_use::until_backward);
      ledger_ = engine.shared_obligations();
    }
    obligation_ = call.open(engine.obligations(), obligation_kind::saved_activation, calls::held_bytes(engine, memory_),
                            residue_.out.shape(), call.at);
  }

  saved& operator=(saved&&) = delete;  // it would lose the obligation of the left side
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;

  /// An obligation that was not discharged stays in the ledger; its memory is reclaimed with the step.
  BELAY_IF_DISCHARGED ~saved() {  // not defaulted: the analysis looks at calls of a destructor
    if constexpr (checked(check_level::local))
      if (obligation_.index != 0) ledger_->note_lost(obligation_);
  }

  /// The layer's output, valid until the backward and the end of the step. Afterwards a usage_error, in all builds.
  BELAY_IF_OPEN [[nodiscard]] output_type out(where at = where::current()) const {
    if (epoch_ != engine_->epoch() || let_go_) [[unlikely]]
      invocation::refuse_output(call_,
                                epoch_ == used_up_epoch      ? "after its backward, discard or hand_over"
                                : epoch_ != engine_->epoch() ? step_ended
                                                             : "after let_go",
                                at.file, at.line);
    return residue_.out;
  }

  /// Nobody reads the output any more but this handle's backward: its memory is free when what has been queued has read
  /// it. Of a layer whose activations are offloaded (step/offloaded_activations.hpp); afterwards `out` is a
  /// usage_error.
  BELAY_IF_OPEN void let_go(where at = where::current()) {
    constexpr bool keeps_own =
        requires(Layer& layer, residue_type& residue, invocation_memory& memory) { layer.let_go(residue, memory); };
    static_assert(keeps_own,
                  "belay: the output of this layer is kept until its backward, which may read it: let go of the output "
                  "of a belay::offloads{layer, activations}, which has a copy of what its backward reads");
    static_cast<void>(out(at));
    if constexpr (keeps_own) layer_->let_go(residue_, memory_);
    let_go_ = true;
  }

  /// Runs the backward: adds to the layer's parameter gradients, and returns the gradient of the input, or nothing
  /// where the input has none. Afterwards all memory of this invocation is free. A second call is a usage_error in
  /// checked builds; in release builds it computes nothing, and the step refuses to commit.
  BELAY_DISCHARGES auto backward(output_type dout, where at = where::current()) && {
    // The obligation stays open while the layer runs, so that a recompute is recorded as its child. In release builds a
    // handle that owes nothing computes nothing: the step will refuse.
    const bool owed = owes();
    call_.parent = obligation_.index;
    if constexpr (differentiable<Input>) {
      gradient_of<Engine, Input> dx{*engine_, input_.shape(), call_.at};
      const auto layer_backward = [&](frame<Engine>& call) {
        layer_->backward(call, std::move(residue_), dout, dx.values());
      };
      if (owed) calls::run_backward(*engine_, call_, memory_, layer_backward, at);
      settle(at);
      return dx;
    } else {
      const auto layer_backward = [&](frame<Engine>& call) {
        if constexpr (backward_without_dx<Layer, Engine, Input>) {
          layer_->backward(call, std::move(residue_), dout);
        } else {
          const gradient_of<Engine, Input> unused{*engine_, input_.shape(), call_.at};
          layer_->backward(call, std::move(residue_), dout, unused.values());
        }
      };
      if (owed) calls::run_backward(*engine_, call_, memory_, layer_backward, at);
      settle(at);
    }
  }

  /// Runs the first half of the backward: the result has the gradient of the input, and owes its `weights()`, which
  /// adds to the parameters' gradients. Afterwards memory of this invocation is free but for what the second half
  /// reads. See step/weight_half.hpp.
  BELAY_DISCHARGES BELAY_OPENS weight_half<Engine, Layer, Input> backward_input(
      output_type dout, where at = where::current()) && {
    return weight_half<Engine, Layer, Input>{*this, dout, at};
  }
  /// The first half consumes the handle; on a named handle it is `std::move(handle).backward_input(...)`.
  template <class Dout>
  void backward_input(const Dout&) & {
    static_assert(always_false<Dout>,
                  "belay: backward_input consumes its handle: write std::move(handle).backward_input(...)");
  }

  /// Backward consumes the handle; on a named handle it is `std::move(handle).backward(...)`.
  template <class Dout>
  void backward(const Dout&) & {
    static_assert(always_false<Dout>, "belay: backward consumes its handle: write std::move(handle).backward(...)");
  }

  /// Ends the obligation without a backward; `why` is for the reader of the code. A layer that has a `discard` ends the
  /// obligations of its residue there.
  BELAY_DISCHARGES void discard([[maybe_unused]] const char* why, where at = where::current()) && {
    if constexpr (discarding_layer<Layer, Engine, Input>) {
      call_.parent = obligation_.index;
      if (owes()) {
        const mark under_way{engine_->watch(), call_.now(layer_call::discard)};
        frame<Engine> call{*engine_, call_, frame_mode::owing, memory_};
        call_.run(layer_call::discard, [&] { layer_->discard(call, std::move(residue_), why); });
      }
    }
    settle(at);
  }

  /// Returns a named handle from a function: `return std::move(handle).hand_over();`. Clang's analysis would take
  /// `return handle;` for a lost one.
  BELAY_DISCHARGES BELAY_OPENS saved hand_over() && { return saved{std::move(*this)}; }

  /// The call that owes this backward: its layer, micro-batch and site.
  [[nodiscard]] const invocation& call() const noexcept { return call_; }

 private:
  template <class>
  friend class handle_store;
  template <class, class...>
  friend class tape;
  template <class, class, class>
  friend class weight_half;
  using mark = typename Engine::watch_type::mark;
  using calls = handle_calls<Engine>;

  // Private, so that a named handle goes nowhere but through `hand_over`.
  BELAY_OPENS saved(saved&& other) noexcept
      : engine_(other.engine_),
        layer_(other.layer_),
        input_(other.input_),
        call_(other.call_),
        memory_(std::exchange(other.memory_, {})),
        residue_(std::move(other.residue_)),
        obligation_(std::exchange(other.obligation_, {})),
        epoch_(std::exchange(other.epoch_, used_up_epoch)),
        let_go_(other.let_go_),
        ledger_(other.ledger_) {}

  [[nodiscard]] residue_type run_forward() {
    const mark under_way{engine_->watch(), call_.now(layer_call::forward)};
    frame<Engine> call{*engine_, call_, frame_mode::owing, memory_};
    return call_.run(layer_call::forward, [&] { return layer_->forward(call, input_); });  // in its place
  }

  [[nodiscard]] bool owes() const noexcept { return engine_->obligations().is_open(obligation_); }

  void settle(where at) { calls::settle(*engine_, obligation_, epoch_, memory_, at); }

  Engine* engine_;
  Layer* layer_;
  Input input_;
  invocation call_;
  invocation_memory memory_;
  residue_type residue_;
  obligation_id obligation_;
  std::uint64_t epoch_;
  bool let_go_ = false;
  // A handle may be destroyed after its engine, by a trainer that an exception ends.
  struct no_ledger {};
  [[no_unique_address]] std::conditional_t<checked(check_level::local), std::shared_ptr<ledger>, no_ledger> ledger_;
};

}  // namespace belay::inline BELAY_ABI
