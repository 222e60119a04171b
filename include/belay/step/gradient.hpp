// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The gradient of a layer's input. It owns its memory until the backward of the layer before has used it. It owes
// nothing: the first layer's input gradient is simply destroyed.
//
//   belay::gradient<belay::host_engine, float, 3> grad{step.engine(), logits.out().shape()};
//   loss(logits.out(), grad.values());             // writes it
//   auto dx = std::move(logits).backward(grad);    // the gradient of the layer's input
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/lease_owners.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class T, std::size_t Rank>
class gradient {
 public:
  /// Leases `shape` from the step's arena; not zeroed. Throws `budget_error` when the arena is full.
  gradient(Engine& engine, extents<Rank> shape, where at = where::current())
      : engine_(&engine), epoch_(engine.epoch()) {
    values_ =
        engine.activations().template lease<T>(shape, memory_, {.purpose = lease_purpose::gradient, .at = at}, at);
  }
  gradient(gradient&& other) noexcept
      : engine_(other.engine_),
        epoch_(other.epoch_),
        values_(other.values_),
        memory_(std::exchange(other.memory_, {})) {}
  gradient& operator=(gradient&& other) noexcept {
    if (this != &other) {
      release();
      engine_ = other.engine_;
      epoch_ = other.epoch_;
      values_ = other.values_;
      memory_ = std::exchange(other.memory_, {});
    }
    return *this;
  }
  ~gradient() { release(); }

  /// The values, of memory that it owns.
  [[nodiscard]] view<T, Rank> values() const noexcept { return values_; }
  operator view<const T, Rank>() const noexcept { return values_; }

 private:
  // The memory of a gradient that outlives its step was reclaimed with the step.
  void release() noexcept {
    if (!memory_.empty() && epoch_ == engine_->epoch()) engine_->activations().release(memory_);
    memory_ = {};
  }

  Engine* engine_;
  std::uint64_t epoch_;
  view<T, Rank> values_;
  lease_chain memory_;
};

/// An input of floating-point elements that has no gradient: a batch. See `constant`.
template <class T, std::size_t Rank>
class constant_input : public view<const T, Rank> {
 public:
  /// Values without a gradient; the memory outlives the step.
  explicit constant_input(view<const T, Rank> values) noexcept : view<const T, Rank>(values) {}
};
/// A forward of `constant(batch)` has no input gradient: its backward returns nothing.
template <class T, std::size_t Rank>
[[nodiscard]] constant_input<std::remove_const_t<T>, Rank> constant(view<T, Rank> values) noexcept {
  return constant_input<std::remove_const_t<T>, Rank>{values};
}
template <class Input>
inline constexpr bool is_constant_input = false;
template <class T, std::size_t Rank>
inline constexpr bool is_constant_input<constant_input<T, Rank>> = true;

/// The gradient of an input that is a view.
template <class Engine, class Input>
struct gradient_for;
template <class Engine, class T, std::size_t Rank>
struct gradient_for<Engine, constant_input<T, Rank>> : gradient_for<Engine, view<T, Rank>> {};
/// The gradient of a view.
template <class Engine, class T, std::size_t Rank>
struct gradient_for<Engine, view<T, Rank>> {
  using type = gradient<Engine, std::remove_cv_t<T>, Rank>;
};
template <class Engine, class Input>
using gradient_of = typename gradient_for<Engine, Input>::type;

}  // namespace belay::inline BELAY_ABI
