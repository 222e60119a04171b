// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stage and the engine that it runs on, as the runner of a pipeline sees them: without the types of layers, elements
// and streams. `pipeline` implements both over a user's types (parallel/pipeline.hpp).
// IWYU pragma: private, include "belay/parallel/pipeline.hpp"
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/arena.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/step/flow_pair.hpp"

namespace belay::inline BELAY_ABI {

/// A tensor that a stage gives, of the pipeline's elements.
struct stage_tensor {
  const void* data = nullptr;
  std::size_t elements = 0;
};

/// The computes of a rank's stages, by chunk and micro-batch. The input is null where nobody gives it: the first stage
/// makes its own from the batch, and the last one its gradient.
class stage_interface {
 public:
  /// Runs a micro-batch and keeps its handles; discharges them.
  virtual void forward(std::size_t chunk, std::size_t micro_batch, const void* input) = 0;
  virtual void backward(std::size_t chunk, std::size_t micro_batch, const void* dout) = 0;
  /// Discharges them in two halves: first for the stage before, then for the parameters. Whether the stages can.
  virtual void backward_input(std::size_t chunk, std::size_t micro_batch, const void* dout) = 0;
  virtual void weights(std::size_t chunk, std::size_t micro_batch) = 0;
  [[nodiscard]] virtual bool has_halves() const noexcept = 0;
  /// The tensor that the next stage receives; that which the stage before receives, until `release`.
  [[nodiscard]] virtual stage_tensor output(std::size_t chunk, std::size_t micro_batch) = 0;
  [[nodiscard]] virtual stage_tensor input_gradient(std::size_t chunk, std::size_t micro_batch) = 0;
  virtual void release(std::size_t chunk, std::size_t micro_batch) = 0;
  /// The output has been sent, or used by the next stage; the input, which `memory` holds, was used in its forward.
  virtual void let_go_of_output(std::size_t chunk, std::size_t micro_batch) = 0;
  virtual void let_go_of_input(std::size_t chunk, lease_chain& memory) = 0;

 protected:
  ~stage_interface() = default;
};

/// The end of an action, which a stream of the host runs in its turn, to have the time of it.
struct stream_note {
  void (*write)(void* into, std::size_t number, traced_span* traced);
  void* into;
  std::size_t number;
  traced_span* traced;
  void operator()() const { write(into, number, traced); }
};

/// The engine of a step or pass: its memory, the order of its compute stream, and its kernels between element types.
class stage_engine {
 public:
  /// Activations.
  [[nodiscard]] virtual lease_source& memory() noexcept = 0;
  /// Changes from step to step, and from pass to pass.
  [[nodiscard]] virtual std::uint64_t epoch() const noexcept = 0;
  /// The log of a step that is traced, or null.
  [[nodiscard]] virtual span_log* spans() const noexcept = 0;

  /// The end of what the compute stream has got; a wait of that stream for the end of a communication, and of the host
  /// where it runs the stream's work at once.
  [[nodiscard]] virtual stream_event record() = 0;
  virtual void wait(const stream_event& over, where at) = 0;

  /// Whether the stream is the host's, which runs notes. That of a device times the spans of its actions itself:
  /// `action()` is what `of` lasts for.
  [[nodiscard]] virtual bool runs_notes() const noexcept = 0;
  virtual void queue(const stream_note& note) = 0;
  virtual void run_timed(traced_span* of, function_ref<void()> action) = 0;
  /// Runs both in turns, as `engine::run_beside` does.
  virtual void run_beside(flow_pair& pair, function_ref<void()> first, function_ref<void()> second,
                          function_ref<void(pair_turn)> changes, where at) = 0;

  /// Queues the conversion of a tensor for the wire, and back.
  virtual void round(const void* exact, void* on_wire, std::size_t elements) = 0;
  virtual void widen(const void* on_wire, void* exact, std::size_t elements) = 0;

 protected:
  ~stage_engine() = default;
};

}  // namespace belay::inline BELAY_ABI
