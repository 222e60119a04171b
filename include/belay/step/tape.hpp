// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The typed tape: what is owed is part of the tape's type, the last forward on top. A body that must return an empty
// tape cannot forget a backward, with any compiler.
//
//   step.run([&](auto tape) {
//     auto one = std::move(tape).forward(first, x);
//     auto x1 = one.out();
//     auto two = std::move(one).forward(second, x1);
//     auto back = std::move(two).backward(dout);
//     return std::move(std::move(back).backward().rest);
//   });
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/step/saved.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class... Saved>
class tape;

/// A tape after a backward, and the gradient for the next one.
template <class Tape, class Gradient>
struct unwound {
  /// The tape without its last forward, and the gradient of that one's input.
  Tape rest;
  Gradient gradient;

  /// The backward of the forward below, with this gradient.
  [[nodiscard]] auto backward(where at = where::current()) && { return std::move(rest).backward(gradient, at); }
};

/// A tape without forwards.
template <class Engine>
class [[nodiscard]] tape<Engine> {
 public:
  /// Of one micro-batch.
  explicit tape(Engine& engine, std::size_t micro_batch = 0) noexcept : engine_(&engine), micro_batch_(micro_batch) {}

  /// The engine, and the micro-batch.
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] std::size_t micro_batch() const noexcept { return micro_batch_; }

  /// Runs the layer and puts its handle on the tape, which is used up.
  template <class Layer, class Input>
  [[nodiscard]] auto forward(Layer& layer, const Input& input, where at = where::current()) && {
    if constexpr (runs_backward<Layer, Engine, Input>()) {
      using next = saved<Engine, Layer, Input>;
      return tape<Engine, next>{
          std::move(*this), layer, input, {layer_name(layer), layer_index(layer), micro_batch_, at}};
    }
  }

 private:
  Engine* engine_;
  std::size_t micro_batch_;
};

/// A tape with forwards, of which the first is the last that ran.
template <class Engine, class First, class... Rest>
class [[nodiscard]] tape<Engine, First, Rest...> {
 public:
  using shorter = tape<Engine, Rest...>;

  /// Runs the forward and opens its obligation on top of `rest`.
  template <class Layer, class Input>
  tape(shorter rest, Layer& layer, const Input& input, const invocation& call)
      : rest_(std::move(rest)), last_(rest_.engine(), layer, input, call) {}

  /// The engine, and the micro-batch.
  [[nodiscard]] Engine& engine() const noexcept { return rest_.engine(); }
  [[nodiscard]] std::size_t micro_batch() const noexcept { return rest_.micro_batch(); }
  /// The output of the last forward.
  [[nodiscard]] auto out() const { return last_.out(); }

  /// Runs the layer and puts its handle on the tape, which is used up.
  template <class Layer, class Input>
  [[nodiscard]] auto forward(Layer& layer, const Input& input, where at = where::current()) && {
    if constexpr (runs_backward<Layer, Engine, Input>()) {
      using next = saved<Engine, Layer, Input>;
      const invocation call{layer_name(layer), layer_index(layer), micro_batch(), at};
      return tape<Engine, next, First, Rest...>{std::move(*this), layer, input, call};
    }
  }

  /// The backward of the last forward. Returns the shorter tape, with the input's gradient where there is one.
  template <class Dout>
  [[nodiscard]] auto backward(const Dout& dout, where at = where::current()) && {
    if constexpr (std::is_void_v<decltype(std::move(last_).backward(dout, at))>) {
      std::move(last_).backward(dout, at);
      return std::move(rest_);
    } else {
      auto gradient = std::move(last_).backward(dout, at);
      return unwound<shorter, decltype(gradient)>{std::move(rest_), std::move(gradient)};
    }
  }

 private:
  shorter rest_;
  First last_;
};

}  // namespace belay::inline BELAY_ABI
