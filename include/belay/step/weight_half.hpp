// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A backward in two halves: the first gives the gradient of the input, which the layer before waits for; the second
// adds to the gradients of parameters, for which nobody waits. Between them a handle owes the second, as an activation
// owes its backward. Any layer's backward can run so: what it adds by products and by `frame.each_into` and the like is
// noted in the first half and runs in the second. Memory that the notes read is held until then, all else of the call
// is free.
//
//   auto half = std::move(hidden).backward_input(dout);      // belay::weight_half<...>
//   auto dx = half.input_gradient();                          // for the layer before
//   std::move(half).weights();                                // whenever there is time
//
// A layer may write both halves itself: `backward_input(frame, residue, dout, dx)` returns what
// `backward_weights(frame, kept)` takes; all that the forward has kept lives until then. A wrapper, such as
// `recompute`, calls the layer's backward, whose additions are noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/where.hpp"
#include "belay/step/contribution.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/handle_calls.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/weight_notes.hpp"

namespace belay::inline BELAY_ABI {

/// False, but not before a template is used.
template <class T>
inline constexpr bool always_false = false;

/// The two forms of halves that a layer writes itself, with and without the gradient of the input.
template <class Layer, class Engine, class Input>
concept halves_with_dx =
    requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
             constant_view_t<output_of<Layer, Engine, Input>> dout, view<typename Input::value_type, Input::rank> dx) {
      layer.backward_weights(call, layer.backward_input(call, std::move(residue), dout, dx));
    };
template <class Layer, class Engine, class Input>
concept halves_without_dx = requires(Layer& layer, frame<Engine>& call, residue_of<Layer, Engine, Input>&& residue,
                                     constant_view_t<output_of<Layer, Engine, Input>> dout) {
  layer.backward_weights(call, layer.backward_input(call, std::move(residue), dout));
};

/// The type that a layer's own first half returns; void of a layer whose additions are noted.
template <class Layer, class Engine, class Input>
struct kept_for_weights {
  using type = void;
};
/// Of halves with the gradient of the input.
template <class Layer, class Engine, class Input>
  requires halves_with_dx<Layer, Engine, Input> &&
           (differentiable<Input> || !halves_without_dx<Layer, Engine, Input>)
struct kept_for_weights<Layer, Engine, Input> {
  using type = decltype(std::declval<Layer&>().backward_input(
      std::declval<frame<Engine>&>(), std::declval<residue_of<Layer, Engine, Input>>(),
      std::declval<constant_view_t<output_of<Layer, Engine, Input>>>(),
      std::declval<view<typename Input::value_type, Input::rank>>()));
};
/// Of halves without it.
template <class Layer, class Engine, class Input>
  requires halves_without_dx<Layer, Engine, Input> && (!differentiable<Input>)
struct kept_for_weights<Layer, Engine, Input> {
  using type = decltype(std::declval<Layer&>().backward_input(
      std::declval<frame<Engine>&>(), std::declval<residue_of<Layer, Engine, Input>>(),
      std::declval<constant_view_t<output_of<Layer, Engine, Input>>>()));
};

template <class Engine, class Layer, class Input>
  requires backward_layer<Layer, Engine, Input>
class saved;

template <class Engine, class Layer, class Input>
class [[nodiscard("belay: the first half of a backward owes its weights")]] BELAY_OBLIGATION weight_half final {
  using kept_type = typename kept_for_weights<Layer, Engine, Input>::type;
  static constexpr bool written_by_layer = !std::is_void_v<kept_type>;

 public:
  weight_half& operator=(weight_half&&) = delete;  // it would lose the obligation of the left side
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;

  /// An obligation that was not discharged stays in the ledger; what it holds is reclaimed with the step.
  BELAY_IF_DISCHARGED ~weight_half() {
    if constexpr (checked(check_level::local))
      if (obligation_.index != 0) ledger_->note_lost(obligation_);
  }

  /// The gradient of the layer's input, once. Throws usage_error where it was taken before, or the handle was used up.
  BELAY_IF_OPEN [[nodiscard]] gradient_of<Engine, Input> input_gradient(where at = where::current())
    requires differentiable<Input>
  {
    if (!dx_) [[unlikely]]
      throw usage_error("the input's gradient of a backward was taken before", at);
    gradient_of<Engine, Input> out = std::move(*dx_);
    dx_.reset();
    return out;
  }

  /// Adds what was noted to the gradients of the layer's parameters, in the order in which the backward would have.
  /// Afterwards nothing of this invocation is held. A second call is a usage_error in checked builds; in release builds
  /// it computes nothing, and the step refuses to commit.
  BELAY_DISCHARGES void weights(where at = where::current()) && {
    call_.parent = obligation_.index;
    if (owes()) {
      if constexpr (written_by_layer) {
        const auto second_half = [&](frame<Engine>& call) { layer_->backward_weights(call, std::move(*kept_)); };
        calls::run_half(*engine_, call_, layer_call::weight_gradient, memory_, second_half, at);
      } else {
        calls::run_noted(*engine_, call_, notes_, at);
      }
    }
    settle(at);
  }
  /// The weights consume their handle; on a named handle it is `std::move(half).weights()`.
  template <class Half = weight_half>
  void weights(where = {}) & {
    static_assert(always_false<Half>, "belay: weights consumes its handle: write std::move(half).weights()");
  }

  /// Ends the obligation and adds nothing: the step lacks these contributions. `why` is for the reader of the code.
  BELAY_DISCHARGES void discard([[maybe_unused]] const char* why, where at = where::current()) && { settle(at); }

  /// Returns a named handle from a function: `return std::move(half).hand_over();`.
  BELAY_DISCHARGES BELAY_OPENS weight_half hand_over() && { return weight_half{std::move(*this)}; }

  /// The call that owes these weights; whether all of its additions ran in the first half, because it asked for a
  /// gradient's memory.
  [[nodiscard]] const invocation& call() const noexcept { return call_; }
  [[nodiscard]] bool added_at_once() const noexcept { return added_at_once_; }

 private:
  template <class>
  friend class handle_store;
  friend class saved<Engine, Layer, Input>;
  using calls = handle_calls<Engine>;

  template <int>
  struct nothing {};
  struct no_ledger {};
  template <class Kept>
  struct optional_of {
    using type = std::optional<Kept>;
  };
  template <class Kept>
    requires std::is_void_v<Kept>
  struct optional_of<Kept> {
    using type = nothing<0>;
  };

  // Runs the first half. Where `of` owes nothing, nothing is computed, and this owes nothing.
  template <class Dout>
  BELAY_OPENS weight_half(saved<Engine, Layer, Input>& of, const Dout& dout, where at)
      : engine_(of.engine_), layer_(of.layer_), call_(of.call_), epoch_(engine_->epoch()) {
    if constexpr (checked(check_level::local)) ledger_ = engine_->shared_obligations();
    if constexpr (differentiable<Input>) dx_.emplace(*engine_, of.input_.shape(), call_.at);
    if (of.owes())
      open(of, dout, at);
    else
      of.settle(at);
  }
  template <class Dout>
  void open(saved<Engine, Layer, Input>& of, const Dout& dout, where at) {
    of.call_.parent = of.obligation_.index;  // a recompute is recorded as its child
    std::size_t held = 0;
    const auto first_half = [&](frame<Engine>& call) { run_first_half(of, call, dout); };
    if constexpr (written_by_layer) {
      calls::run_half(*engine_, of.call_, layer_call::input_gradient, of.memory_, first_half, at);
      memory_ = std::exchange(of.memory_, {});
      held = calls::held_bytes(*engine_, memory_);
    } else {
      added_at_once_ = calls::run_noting(*engine_, of.call_, of.memory_, notes_, first_half, at);
      held = notes_.bytes();
    }
    calls::release(*engine_, of.epoch_, of.memory_);
    obligation_ = std::exchange(of.obligation_, {});
    engine_->obligations().discharge_in_part(obligation_, obligation_kind::weight_gradient, held);
  }
  template <class Dout>
  void run_first_half(saved<Engine, Layer, Input>& of, frame<Engine>& call, const Dout& dout) {
    if constexpr (differentiable<Input>) {
      run_layer(call, of.residue_, dout, dx_->values());
    } else if constexpr (written_by_layer ? halves_without_dx<Layer, Engine, Input>
                                          : backward_without_dx<Layer, Engine, Input>) {
      run_layer(call, of.residue_, dout);
    } else {
      const gradient_of<Engine, Input> unused{*engine_, of.input_.shape(), call_.at};
      run_layer(call, of.residue_, dout, unused.values());
    }
  }
  template <class Residue, class Dout, class... Dx>
  void run_layer(frame<Engine>& call, Residue& residue, const Dout& dout, const Dx&... dx) {
    if constexpr (written_by_layer)
      kept_.emplace(layer_->backward_input(call, std::move(residue), dout, dx...));
    else
      layer_->backward(call, std::move(residue), dout, dx...);
  }

  BELAY_OPENS weight_half(weight_half&& other) noexcept
      : engine_(other.engine_),
        layer_(other.layer_),
        call_(other.call_),
        memory_(std::exchange(other.memory_, {})),
        notes_(std::move(other.notes_)),
        kept_(std::move(other.kept_)),
        dx_(std::move(other.dx_)),
        obligation_(std::exchange(other.obligation_, {})),
        epoch_(std::exchange(other.epoch_, used_up_epoch)),
        added_at_once_(other.added_at_once_),
        ledger_(other.ledger_) {
    if constexpr (differentiable<Input>) other.dx_.reset();
  }

  [[nodiscard]] bool owes() const noexcept { return engine_->obligations().is_open(obligation_); }

  void settle(where at) {
    if constexpr (differentiable<Input>) dx_.reset();
    if constexpr (written_by_layer)
      calls::settle(*engine_, obligation_, epoch_, memory_, at);
    else
      calls::settle_noted(*engine_, obligation_, epoch_, notes_, at);
  }

  Engine* engine_;
  Layer* layer_;
  invocation call_;
  // Of a layer that writes both halves.
  [[no_unique_address]] std::conditional_t<written_by_layer, invocation_memory, nothing<2>> memory_;
  weight_note_list notes_;
  [[no_unique_address]] typename optional_of<kept_type>::type kept_;
  struct gradient_of_input {
    template <class Of>
    static auto type_of() {
      if constexpr (differentiable<Of>)
        return std::optional<gradient_of<Engine, Of>>();
      else
        return nothing<1>();
    }
  };
  [[no_unique_address]] decltype(gradient_of_input::template type_of<Input>()) dx_;
  obligation_id obligation_;
  std::uint64_t epoch_;
  bool added_at_once_ = false;
  [[no_unique_address]] std::conditional_t<checked(check_level::local), std::shared_ptr<ledger>, no_ledger> ledger_;
};

}  // namespace belay::inline BELAY_ABI
