// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Executes one rank's row of a schedule, action by action: which tensors go to which neighbour, how long they are
// kept, and when the stream ran what. An exchange runs beside the computes: the compute stream waits for it where it
// uses what is received, at the next exchange, or at the end of the row. A tensor on its way is one as layers have it,
// and one as it is on the wire, which may be rounded. It knows no type of a model, so it is compiled once.
// IWYU pragma: private, include "belay/parallel/pipeline.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/comm/group.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/poison.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/parallel/pipeline/stage_interface.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/step/flow_pair.hpp"

namespace belay::inline BELAY_ABI {

/// An element type, as far as memory for it matters.
struct element_format {
  std::size_t bytes = 0;
  element_kind kind = element_kind::unknown;

  template <class T>
  [[nodiscard]] static constexpr element_format of() noexcept {
    return {sizeof(T), kind_of_element<T>()};
  }
};

/// The elements of tensors between stages: those of layers, and those of the wire, which differ where it is `rounded`.
struct boundary_elements {
  element_format exact;
  element_format wire;
  bool rounded = false;

  template <class T, class Wire>
  [[nodiscard]] static constexpr boundary_elements of() noexcept {
    return {element_format::of<T>(), element_format::of<Wire>(), !std::is_same_v<T, Wire>};
  }
};

/// A tensor that a stage receives, or one that it sends.
class tensor_between_stages {
 public:
  /// For the layers. Not before `widen`; null where nothing was received.
  [[nodiscard]] void* values() const noexcept { return values_; }
  [[nodiscard]] lease_chain& memory() noexcept { return memory_; }

  /// Memory for what a communication that begins at `ready` receives. Throws size_error, budget_error.
  [[nodiscard]] std::span<std::byte> receive(stage_engine& engine, const stream_event& ready, boundary_elements of,
                                             std::span<const std::size_t> shape, where at);
  /// Memory for what a communication receives, leased by the compute stream. The communication begins after that
  /// stream's earlier work.
  [[nodiscard]] std::span<std::byte> lease(stage_engine& engine, boundary_elements of,
                                           std::span<const std::size_t> shape, where at);
  /// Converts a received tensor, before the compute stream uses it; does nothing where it came exact, or was converted.
  void widen(stage_engine& engine, boundary_elements of, where at);
  /// The tensor that is sent of `exact`: that, or a rounded copy, until `release`.
  [[nodiscard]] std::span<const std::byte> round(stage_engine& engine, boundary_elements of, stage_tensor exact,
                                                 where at);
  void release(stage_engine& engine) noexcept;
  /// Its step has ended, which has reclaimed the memory.
  void forget() noexcept { *this = {}; }

 private:
  [[nodiscard]] static std::size_t bytes_of(std::span<const std::size_t> shape, std::size_t element_bytes, where at);
  [[nodiscard]] std::span<std::byte> arriving(boundary_elements of, std::byte* leased, std::size_t bytes) noexcept;

  void* values_ = nullptr;
  lease_chain memory_;
  void* on_wire_ = nullptr;
  lease_chain wire_memory_;
  std::size_t elements_ = 0;
  bool waits_ = false;  // to be widened: also one of no elements
};

/// How a rank's compute stream has spent its time in one pipeline phase, in seconds. Known once the step has ended; of
/// the stream of a device, where that was traced (`pipeline::take_times_of_device`).
struct pipeline_times {
  /// Seconds in forwards and backwards.
  double forward = 0;
  double backward = 0;
  double waiting = 0;  // for exchanges
  double phase = 0;    // first action to last; 0: nothing is known

  /// Whether the stream has told: where not, all are 0.
  [[nodiscard]] bool known() const noexcept { return phase > 0; }
  /// Adds an action's seconds; the share of a step that the rank waited.
  void add(schedule::action_kind what, bool exchanged, double seconds) noexcept {
    (exchanged ? waiting : what == schedule::action_kind::forward ? forward : backward) += seconds;
    phase += seconds;
  }
  [[nodiscard]] double bubble() const noexcept { return phase > 0 ? waiting / phase : 0; }
};

/// An action of a rank's row, and when its compute stream ran it, in nanoseconds of the clock. Known once the step has
/// ended, and as `pipeline_times` where that is the stream of a device.
struct executed_action {
  /// The action, its micro-batch, and when it began and ended, in nanoseconds of the monotonic clock; 0: not known.
  schedule::action_kind kind = schedule::action_kind::forward;
  std::size_t micro_batch = 0;
  bool exchanged = false;  // tensors with neighbours: what the stream did was wait
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// The chunk of a compute; whether it runs beside the next one. Of such a pair the times are those of one after the
  /// other, each as long as its turns.
  std::size_t chunk = 0;
  bool paired = false;
};

/// Times of a phase whose actions have these spans, which go to `actions` too. Unknown where one has none, or is not
/// over: 0. What lies between two actions is part of the phase.
[[nodiscard]] BELAY_DECL pipeline_times times_of_spans(std::span<const traced_span* const> spans,
                                                       std::span<executed_action> actions) noexcept;

/// An observer of a pipeline: it is told of each action of the row when the stream has been given it.
class action_observer {
 public:
  virtual void given(std::size_t number) = 0;

 protected:
  ~action_observer() = default;
};

/// A rank's row of a proven table, and the tensors that its actions exchange.
class pipeline_runner {
 public:
  /// `boundary` is the shape of tensors between stages. Throws usage_error with the reason where the table cannot run.
  pipeline_runner(group of, schedule::dynamic_table table, boundary_elements elements,
                  std::span<const std::size_t> boundary, where at);

  [[nodiscard]] const schedule::dynamic_table& table() const noexcept { return table_; }
  /// The place of the stage that is this rank's chunk.
  [[nodiscard]] schedule::position place(std::size_t chunk) const noexcept;
  /// Throws usage_error where a rank gives another number of stages than the table has chunks.
  void expect_stages(std::size_t given, where at) const;
  /// Whether this rank has a stage.
  [[nodiscard]] bool holds(std::size_t stage) const noexcept { return table_.rank_of(stage) == rank(); }

  /// Runs the row. Collective along the pipeline. An error leaves once the exchange that was under way is over, for
  /// which its peers need nothing more of this rank.
  void run(stage_engine& engine, stage_interface& stages, where at);

  /// For one tensor of a pass: receives what `stage` takes from the rank of the stage before, for the layers, in memory
  /// of `incoming`; sends what `stage` gives to the rank of the next.
  [[nodiscard]] void* receive_in_pass(stage_engine& engine, std::size_t stage, std::span<const std::size_t> shape,
                                      tensor_between_stages& incoming, where at);
  void send_in_pass(stage_engine& engine, std::size_t stage, stage_tensor output, where at);

  /// From the next run on, the computes of a pair run in turns. Throws budget_error where there is no room for a stack.
  void overlap_pairs(where at) {
    if (pair_ == nullptr) pair_ = std::make_unique<flow_pair>(at);
  }
  /// Pairs in this rank's row.
  [[nodiscard]] std::size_t pairs() const noexcept;

  [[nodiscard]] const pipeline_times& times() const noexcept { return times_; }
  void take_times_of_device() noexcept;
  [[nodiscard]] std::span<const executed_action> executed() const noexcept { return executed_; }
  void watch_actions(action_observer& by) noexcept { observer_ = &by; }

 private:
  using transfer_list = std::array<p2p, schedule::action::most_transfers>;

  [[nodiscard]] std::size_t rank() const noexcept { return static_cast<std::size_t>(group_.rank()); }
  [[nodiscard]] std::span<const schedule::action> row() const noexcept { return table_.actions(rank()); }
  [[nodiscard]] tensor_between_stages& received(schedule::payload what, std::size_t chunk,
                                                std::size_t micro_batch) noexcept {
    return received_[2 * (chunk * table_.micro_batches() + micro_batch) +
                     (what == schedule::payload::gradient ? 1 : 0)];
  }
  // Whether the exchange that is under way brings what a compute takes.
  [[nodiscard]] bool awaits(const schedule::action& compute) const noexcept;
  // Host and compute stream go on at once.
  void start_exchange(stage_engine& engine, stage_interface& stages, std::size_t number, where at);
  // The compute stream goes on when the exchange that is under way is over, and what it sent is released. Its time is
  // that of the wait.
  void finish_exchange(stage_engine& engine, stage_interface& stages, where at);
  // Runs an action, and takes its times.
  void run_timed(stage_engine& engine, std::size_t number, function_ref<void()> action);
  void run_row(stage_engine& engine, stage_interface& stages, where at);
  // The pair of the action `number` and the next one: the backward begins.
  void run_pair(stage_engine& engine, stage_interface& stages, std::size_t number, where at);
  // After an error: peers may be reading what a stage owns, which goes when the error leaves.
  void let_exchange_end(where at) const noexcept;
  void compute(stage_engine& engine, stage_interface& stages, const schedule::action& next, where at);
  void forward(stage_engine& engine, stage_interface& stages, const schedule::action& next, where at);
  void backward(stage_engine& engine, stage_interface& stages, const schedule::action& next, where at);
  // One transfer of a pass. What is received has been leased before the event, as what is sent.
  void exchange_in_pass(stage_engine& engine, const p2p& one, where at);
  // Begins after `ready`; its result is its end. Memory of an arena that it uses is nobody else's before. `kept` has
  // the transfers.
  [[nodiscard]] stream_event start_transfers(stage_engine& engine, const stream_event& ready,
                                             std::span<const p2p> transfers, const std::shared_ptr<const void>& kept,
                                             where at);

  // Of an action, before those of what it calls.
  [[nodiscard]] static traced_span* add_span(span_log* to, const schedule::action& next);
  // Of a stream of the host, by whichever thread runs it.
  void begin_phase() noexcept;
  void end_action(std::size_t number, traced_span* traced) noexcept;
  void begin_pair(std::size_t number) noexcept;
  void end_turn(std::size_t number) noexcept;
  void end_pair(std::size_t number, traced_span* traced) noexcept;

  group group_;
  schedule::dynamic_table table_;
  boundary_elements elements_;
  std::vector<std::size_t> boundary_;
  std::vector<tensor_between_stages> received_;
  std::optional<std::size_t> under_way_;  // the action that is an exchange nobody has waited for yet
  stream_event over_;                     // and its end
  // Of each action: a started exchange reads them, also where nobody waits for it any more.
  std::shared_ptr<std::vector<transfer_list>> transfers_ = std::make_shared<std::vector<transfer_list>>();
  // And those of one pass, which stay where they are.
  std::shared_ptr<std::deque<p2p>> passed_ = std::make_shared<std::deque<p2p>>();
  std::size_t in_pass_ = 0;
  std::uint64_t pass_ = 0;  // an epoch
  pipeline_times times_;
  std::vector<executed_action> executed_;
  std::vector<const traced_span*> spans_of_device_;  // of the last run; null: it was not traced
  action_observer* observer_ = nullptr;
  std::unique_ptr<flow_pair> pair_;  // null: one compute of a pair runs after the other
  bool in_halves_ = false;  // some backwards of the row
  std::int64_t last_ = 0;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/pipeline/runner.ipp"  // IWYU pragma: export
#endif
