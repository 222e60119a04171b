// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The tensors between the stages of a pipeline: their shape, and what they are on the wire.
// IWYU pragma: private, include "belay/parallel/pipeline.hpp"
#pragma once

#include <cstddef>
#include <type_traits>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/elementwise.hpp"

namespace belay::inline BELAY_ABI {

/// The element type and shape of the tensors between stages. They are rounded to `Wire` where they leave a stage, and
/// have their own type again in the next one: half the bytes for `boundary<float, bf16>({...})`.
template <class T, std::size_t Rank, class Wire = T>
struct stage_boundary {
  /// The shape of the tensor that one micro-batch hands from stage to stage.
  extents<Rank> shape;
};
template <class T, class Wire = T, std::size_t Rank>
[[nodiscard]] constexpr stage_boundary<T, Rank, Wire> boundary(const std::size_t (&shape)[Rank]) noexcept {
  return {extents_of(shape)};
}

/// A tensor in the type of another, by the engine's kit.
template <class Engine, class From, class To, std::size_t Rank>
void convert(Engine& engine, view<From, Rank> from, view<To, Rank> to) {
  engine.kit().each(from.size(), kernel::copy<std::remove_const_t<From>, To>{from.data(), to.data()});
}

/// A tensor that a stage receives, as the layers take it and as it comes over the wire, or one that it sends.
template <class T, class Wire, std::size_t Rank>
class tensor_between_stages {
 public:
  static constexpr bool rounded = !std::is_same_v<T, Wire>;

  /// For the layers. Not before `widen`.
  [[nodiscard]] view<T, Rank> values() const noexcept { return values_; }
  [[nodiscard]] lease_chain& memory() noexcept { return memory_; }

  /// Memory for what a communication that begins at `ready` receives.
  template <class Engine>
  [[nodiscard]] view<Wire, Rank> receive(Engine& engine, const stream_event& ready, extents<Rank> shape, where at) {
    auto& arena = engine.activations();
    if constexpr (rounded) {
      return on_wire_ = arena.template lease_for<Wire>(stream_kind::communication, ready, shape, wire_memory_, at);
    } else {
      return values_ = arena.template lease_for<T>(stream_kind::communication, ready, shape, memory_, at);
    }
  }
  /// Memory for what a communication receives, leased by the compute stream. The communication begins after that
  /// stream's earlier work.
  template <class Engine>
  [[nodiscard]] view<Wire, Rank> lease(Engine& engine, extents<Rank> shape, where at) {
    if constexpr (rounded)
      return on_wire_ = engine.activations().template lease<Wire>(shape, wire_memory_, at);
    else
      return values_ = engine.activations().template lease<T>(shape, memory_, at);
  }
  /// Converts a received tensor to T, before the compute stream uses it; does nothing where it came as T, or was
  /// converted.
  template <class Engine>
  void widen(Engine& engine, where at) {
    if constexpr (rounded) {
      if (on_wire_.shape() == extents<Rank>{}) return;  // nothing, or used before; one of no sequences has a shape
      values_ = engine.activations().template lease<T>(on_wire_.shape(), memory_, at);
      convert(engine, on_wire_, values_);
      engine.activations().release(wire_memory_);
      on_wire_ = {};
    }
  }
  /// The tensor that is sent of `exact`: that, or a rounded copy, until `release`.
  template <class Engine>
  [[nodiscard]] view<const Wire, Rank> round(Engine& engine, view<const T, Rank> exact, where at) {
    if constexpr (rounded) {
      on_wire_ = engine.activations().template lease<Wire>(exact.shape(), wire_memory_, at);
      convert(engine, exact, on_wire_);
      return on_wire_;
    } else {
      return exact;
    }
  }
  template <class Engine>
  void release(Engine& engine) noexcept {
    engine.activations().release(memory_);
    engine.activations().release(wire_memory_);
    forget();
  }
  /// Its step has ended, which has reclaimed the memory.
  void forget() noexcept { *this = {}; }

 private:
  view<T, Rank> values_;
  lease_chain memory_;
  view<Wire, Rank> on_wire_;
  lease_chain wire_memory_;
};

}  // namespace belay::inline BELAY_ABI
