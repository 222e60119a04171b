// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The stages of a rank and their engine with their types, behind what the runner of a pipeline calls.
// IWYU pragma: private, include "belay/parallel/pipeline.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/pipeline/stage_interface.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/step/flow_pair.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// A stage of one's own: what one rank does in a pipeline. `forward` runs a micro-batch and keeps its handles. `output`
/// is what the next stage receives, while this one computes on: it stays as it is until the micro-batch's backward, or
/// `let_go_of_output` where there is one. `backward` discharges the handles. `input_gradient` is what the stage before
/// receives; it stays valid until `release`. The first stage gets an empty view as its input, the last an empty one as
/// its gradient: both make their own from the batch.
template <class S, class T, class Engine, std::size_t Rank = 3>
concept runs_as_stage = requires(S& stage, const micro_batch_scope<Engine>& scope, view<const T, Rank> tensor,
                                 std::size_t micro_batch) {
  stage.forward(scope, tensor);
  { stage.output(micro_batch) } -> std::convertible_to<view<const T, Rank>>;
  stage.backward(scope, tensor);
  { stage.input_gradient(micro_batch) } -> std::convertible_to<view<const T, Rank>>;
  stage.release(micro_batch);
};
/// A stage of one's own that also runs schedules of backwards in two halves: `backward_input` makes the gradient that
/// the stage before receives, `weights` discharges what is left.
template <class S, class T, class Engine, std::size_t Rank = 3>
concept runs_in_halves = requires(S& stage, const micro_batch_scope<Engine>& scope, view<const T, Rank> tensor) {
  stage.backward_input(scope, tensor);
  stage.weights(scope);
};

/// The stages of a rank, between tensors of the shape `boundary`. `stages(chunk)` gives a stage, or what runs as one;
/// `place(chunk)` is its place. Engine and stages outlive it.
template <class Engine, class T, std::size_t Rank, class Stages, class Places>
class typed_stages final : public stage_interface {
 public:
  typed_stages(Engine& engine, const Stages& stages, const Places& place, extents<Rank> boundary) noexcept
      : engine_(&engine), stages_(&stages), place_(&place), boundary_(boundary) {}

  void forward(std::size_t chunk, std::size_t micro_batch, const void* input) override {
    auto&& stage = (*stages_)(chunk);
    stage.forward(micro_batch_scope<Engine>(*engine_, micro_batch),
                  (*place_)(chunk).first() ? tensor() : arrived(input));
  }
  void backward(std::size_t chunk, std::size_t micro_batch, const void* dout) override {
    auto&& stage = (*stages_)(chunk);
    stage.backward(micro_batch_scope<Engine>(*engine_, micro_batch),
                   (*place_)(chunk).last() ? tensor() : arrived(dout));
  }
  void backward_input([[maybe_unused]] std::size_t chunk, [[maybe_unused]] std::size_t micro_batch,
                      [[maybe_unused]] const void* dout) override {
    if constexpr (in_halves)
      (*stages_)(chunk).backward_input(micro_batch_scope<Engine>(*engine_, micro_batch),
                                       (*place_)(chunk).last() ? tensor() : arrived(dout));
  }
  void weights([[maybe_unused]] std::size_t chunk, [[maybe_unused]] std::size_t micro_batch) override {
    if constexpr (in_halves) (*stages_)(chunk).weights(micro_batch_scope<Engine>(*engine_, micro_batch));
  }
  [[nodiscard]] bool has_halves() const noexcept override { return in_halves; }
  [[nodiscard]] stage_tensor output(std::size_t chunk, std::size_t micro_batch) override {
    return untyped((*stages_)(chunk).output(micro_batch));
  }
  [[nodiscard]] stage_tensor input_gradient(std::size_t chunk, std::size_t micro_batch) override {
    return untyped((*stages_)(chunk).input_gradient(micro_batch));
  }
  void release(std::size_t chunk, std::size_t micro_batch) override { (*stages_)(chunk).release(micro_batch); }
  void let_go_of_output([[maybe_unused]] std::size_t chunk, [[maybe_unused]] std::size_t micro_batch) override {
    if constexpr (requires { (*stages_)(chunk).let_go_of_output(micro_batch); })
      (*stages_)(chunk).let_go_of_output(micro_batch);
  }
  void let_go_of_input([[maybe_unused]] std::size_t chunk, [[maybe_unused]] lease_chain& memory) override {
    if constexpr (requires { (*stages_)(chunk).let_go_of_input(memory); }) (*stages_)(chunk).let_go_of_input(memory);
  }

 private:
  using tensor = view<const T, Rank>;
  using stage_type = std::remove_reference_t<decltype(std::declval<const Stages&>()(std::size_t{}))>;
  static constexpr bool in_halves = runs_in_halves<stage_type, T, Engine, Rank>;

  [[nodiscard]] tensor arrived(const void* data) const noexcept { return {static_cast<const T*>(data), boundary_}; }
  [[nodiscard]] static stage_tensor untyped(tensor of) noexcept { return {of.data(), of.size()}; }

  Engine* engine_;
  const Stages* stages_;
  const Places* place_;
  extents<Rank> boundary_;
};

/// The engine of a step or pass, which outlives it, for tensors of T that are `Wire` where they are sent.
template <class Engine, class T, class Wire>
class typed_engine final : public stage_engine {
 public:
  explicit typed_engine(Engine& of) noexcept : engine_(&of), memory_(of.activations()) {}

  [[nodiscard]] lease_source& memory() noexcept override { return memory_; }
  [[nodiscard]] std::uint64_t epoch() const noexcept override { return engine_->epoch(); }
  [[nodiscard]] span_log* spans() const noexcept override { return engine_->spans(); }

  [[nodiscard]] stream_event record() override { return engine_->compute().record(); }
  void wait(const stream_event& over, [[maybe_unused]] where at) override {
    if constexpr (requires { engine_->compute().wait(over, at); })
      engine_->compute().wait(over, at);
    else
      engine_->compute().wait(over);
  }

  [[nodiscard]] bool runs_notes() const noexcept override { return !on_device; }
  void queue([[maybe_unused]] const stream_note& note) override {
    if constexpr (!on_device) engine_->compute().run(note);
  }
  void run_timed(traced_span* of, function_ref<void()> action) override {
    const queued_span of_device(engine_->compute(), on_device ? of : nullptr);
    action();
  }

  void run_beside(flow_pair& pair, function_ref<void()> first, function_ref<void()> second,
                  function_ref<void(pair_turn)> changes, where at) override {
    engine_->run_beside(pair, first, second, changes, at);
  }

  void round(const void* exact, void* on_wire, std::size_t elements) override {
    convert(static_cast<const T*>(exact), static_cast<Wire*>(on_wire), elements);
  }
  void widen(const void* on_wire, void* exact, std::size_t elements) override {
    convert(static_cast<const Wire*>(on_wire), static_cast<T*>(exact), elements);
  }

 private:
  using stream_type = typename Engine::stream_type;
  static constexpr bool on_device = device_stream<stream_type>;

  template <class From, class To>
  void convert([[maybe_unused]] const From* from, [[maybe_unused]] To* to, [[maybe_unused]] std::size_t elements) {
    if constexpr (!std::is_same_v<From, To>) engine_->kit().each(elements, kernel::copy<From, To>{from, to});
  }

  Engine* engine_;
  lease_source_of<std::remove_reference_t<decltype(std::declval<Engine&>().activations())>> memory_;
};

}  // namespace belay::inline BELAY_ABI
