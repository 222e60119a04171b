// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs one rank's row of a schedule. The table that was proven is executed action by action. The library owns the
// received tensors, so a stage only computes. Received activations live until the backward of their micro-batch,
// received gradients until it is over, and gradients to send until their exchange is done.
//
//   belay::pipeline pipeline{mesh, belay::schedule::one_f_one_b(4, 16), belay::boundary<float>({batch, length,
//   hidden})}; belay::pipeline_stage stage{net};                 // this rank's part of the network belay::step
//   step{run.engine(), store}; pipeline.run(step, stage, tokens, [&](const auto& scope, auto logits) {
//     return belay::cross_entropy(scope, logits, targets[scope.micro_batch()]);
//   });
//   const double waiting = pipeline.times().bubble();
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/span_log.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/stream_clock.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/stream_spans.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/parallel/pipeline_stage.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/step/forward_only.hpp"
#include "belay/step/gradient.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// The element type and shape of the tensors between stages. They are rounded to `Wire` where they leave a stage, and
/// have their own type again in the next one: half the bytes for `boundary<float, bf16>({...})`.
/// The tensors between the stages of a pipeline: their shape, and what they are on the wire.
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
  /// Whether the two types differ.
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

/// How a rank's compute stream has spent its time in one pipeline phase, in seconds. Known once the step has ended; of
/// the stream of a device, where that was traced (`pipeline::take_times_of_device`).
/// Where the time of a rank's pipeline phase went.
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
};

/// Times of a phase whose actions have these spans, which go to `actions` too. Unknown where one has none, or is not
/// over: 0. What lies between two actions is part of the phase.
[[nodiscard]] inline pipeline_times times_of_spans(std::span<const traced_span* const> spans,
                                                   std::span<executed_action> actions) noexcept {
  pipeline_times out;
  const auto is_over = [](const traced_span* each) { return each != nullptr && each->over(); };
  const bool known = std::all_of(spans.begin(), spans.end(), is_over);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    executed_action& done = actions[i];
    done.begin = done.end = 0;
    if (!known) continue;
    done.begin = spans[i]->begin, done.end = spans[i]->end;
    out.add(done.kind, done.exchanged, 1e-9 * static_cast<double>(done.end - done.begin));
  }
  if (known && !spans.empty()) out.phase = 1e-9 * static_cast<double>(actions[spans.size() - 1].end - actions[0].begin);
  return out;
}

/// A stage of one's own: what one rank does in a pipeline. `forward` runs a micro-batch and keeps its handles. `output`
/// is what the next stage receives. `backward` discharges the handles. `input_gradient` is what the stage before
/// receives; it stays valid until `release`. The first stage gets an empty view as its input, the last an empty one as
/// its gradient: both make their own from the batch.
template <class S, class T, class Engine, std::size_t Rank = 3>
concept runs_as_stage =
    requires(S& stage, const micro_batch_scope<Engine>& scope, view<const T, Rank> tensor, std::size_t micro_batch) {
      stage.forward(scope, tensor);
      { stage.output(micro_batch) } -> std::convertible_to<view<const T, Rank>>;
      stage.backward(scope, tensor);
      { stage.input_gradient(micro_batch) } -> std::convertible_to<view<const T, Rank>>;
      stage.release(micro_batch);
    };

/// `Wire` is what tensors between stages are sent as.
template <class T, communicator Group, schedule::any_table Table, std::size_t Rank = 3, class Wire = T>
class pipeline {
 public:
  /// Over the pipeline axis of `mesh`.
  pipeline(const belay::mesh& mesh, Table table, stage_boundary<T, Rank, Wire> boundary, where at = where::current())
      : pipeline(mesh.pipeline(at), std::move(table), boundary.shape, at) {}
  /// `group` is the mesh's pipeline axis: its size is the table's number of stages. `boundary` is the shape of the
  /// tensors between stages. Throws usage_error with the reason where the table cannot run.
  pipeline(Group group, Table table, extents<Rank> boundary, where at = where::current())
      : group_(std::move(group)), table_(std::move(table)), boundary_(boundary), received_(2 * table_.micro_batches()) {
    if (static_cast<std::size_t>(group_.size()) != table_.stages()) {
      throw usage_error("a schedule of " + std::to_string(table_.stages()) + " stages runs on as many ranks, not " +
                            std::to_string(group_.size()),
                        at);
    }
    const auto proven = proof(table_);
    if (!proven.valid()) throw usage_error("this schedule cannot run: " + explain(proven.reason), at);
    for (const schedule::action& next : table_.actions(static_cast<std::size_t>(group_.rank()))) {
      if (next.kind == schedule::action_kind::input_gradient || next.kind == schedule::action_kind::weight_gradient) {
        throw usage_error("this runner has no split backwards: use a schedule of forwards and whole backwards", at);
      }
      executed_.push_back({next.kind, next.micro_batch, next.is_exchange()});
    }
    transfers_->resize(executed_.size());
    spans_of_device_.resize(executed_.size());
  }

  /// The schedule that it runs.
  [[nodiscard]] const Table& table() const noexcept { return table_; }

  /// Runs all micro-batches of the step forward and backward through the stages. `inputs` is a view whose first axis is
  /// the micro-batch, or called as `inputs(micro_batch)`; the first stage reads it, and its memory stays until the step
  /// has ended. `loss(scope, output)` is called on the last stage for every micro-batch, `scope.micro_batch()`, and
  /// returns what `belay::cross_entropy` does: the step notes the loss, and the gradient goes backwards. Collective
  /// along the pipeline. `times()` has the times afterwards. Throws usage_error where the network is no part for this
  /// stage, or `inputs` have too few micro-batches.
  template <clock_policy Clock = monotonic_clock, class Engine, class... Participants, class Network, class Activations,
            class Inputs, class Loss>
  void run(const step<Engine, Participants...>& step, pipeline_stage<Network, Activations>& stage, const Inputs& inputs,
           const Loss& loss, where at = where::current()) {
    constexpr bool indexed = gives_micro_batches<Inputs>;
    static_assert(indexed,
                  "belay: the inputs of a pipeline are a view whose first axis is the micro-batch, or are called as "
                  "inputs(micro_batch) and return a view");
    if constexpr (indexed) {
      using input_type = decltype(input_of(inputs, std::size_t{}));
      if constexpr (runs_as_network<Network, Engine, T, Rank, input_type>()) {
        if constexpr (gives_loss<Network, Loss, Engine, T, Rank>()) {
          if (place().first()) expect_micro_batches(inputs, place().micro_batches, at);
          auto& handles = stage.template handles<Engine, T, Rank, input_type>(place(), at);
          network_pass<std::remove_reference_t<decltype(handles)>, Inputs, Loss> pass{handles, inputs, loss, at};
          run<Clock>(step, pass, at);
        }
      }
    }
  }

  /// Runs all micro-batches of the step forward and backward through a stage of one's own. Collective along the
  /// pipeline. `times()` has the times afterwards.
  template <clock_policy Clock = monotonic_clock, class Engine, class... Participants,
            runs_as_stage<T, Engine, Rank> Stage>
  void run(const step<Engine, Participants...>& step, Stage& stage, where at = where::current()) {
    step.micro_batches(table_.micro_batches(), at);
    for (tensor& left_over : received_) left_over.forget();  // of a step that ended early, which has reclaimed them
    auto& compute_stream = step.engine().compute();
    constexpr bool timed = !device_stream<std::remove_reference_t<decltype(compute_stream)>>;  // by work of the host
    if constexpr (timed)
      compute_stream.run([this] { times_ = {}, last_ = Clock::now(); });
    else
      times_ = {};
    std::size_t number = 0;
    for (const schedule::action& next : table_.actions(static_cast<std::size_t>(group_.rank()))) {
      traced_span* const traced = add_span(step.engine().spans(), next);
      if constexpr (!timed) spans_of_device_[number] = traced;
      {
        const queued_span of_device(compute_stream, timed ? nullptr : traced);
        if (next.is_exchange())
          exchange(step.engine(), stage, next, (*transfers_)[number], at);
        else
          compute(step.micro_batch(next.micro_batch), stage, next, at);
      }
      // In the order of the stream, whose time it is.
      if constexpr (timed)
        compute_stream.run([this, number, traced] {
          executed_action& done = executed_[number];
          done.end = Clock::now();
          done.begin = std::exchange(last_, done.end);
          times_.add(done.kind, done.exchanged, 1e-9 * static_cast<double>(done.end - done.begin));
          if (traced != nullptr) traced->begin_at(done.begin), traced->end_at(done.end);
        });
      if (watch_) watch_(number);
      ++number;
    }
  }

  /// Runs one micro-batch forward through all stages, for evaluation: `see(output)` is called on the last one with what
  /// the network puts out. All stages give an `input` of the same shape, of which the first reads the values; the
  /// tensors between stages have its extents, and the boundary's where it has none. Collective along the pipeline.
  template <class Engine, class... Participants, class Network, class Activations, class Input, class See>
  void observe(const forward_only<Engine, Participants...>& pass, pipeline_stage<Network, Activations>& stage,
               const Input& input, See&& see, where at = where::current()) {
    if constexpr (runs_as_network<Network, Engine, T, Rank, Input>()) {
      stage.expect_part(place(), at);
      const auto from_layers = [&](view<const T, Rank> x) { observe_layers(pass, stage, x, see, at); };
      if (!place().first()) {
        tensor incoming;
        const auto arriving = incoming.lease(pass.engine(), boundary_of(input.shape()), at);
        exchange_in_pass(pass.engine(), p2p::receive(group_.rank() - 1, arriving.flat()), at);
        incoming.widen(pass.engine(), at);
        from_layers(incoming.values());
        incoming.release(pass.engine());
      } else if constexpr (offers_first<Network>) {
        const auto embedded = belay::observe(pass, stage.network().first(), input, at);
        from_layers(embedded.out(at));
      } else {
        from_layers(input);
      }
    }
  }

  /// Times of this rank's last run.
  [[nodiscard]] const pipeline_times& times() const noexcept { return times_; }
  /// Of a run on a device, in a traced step, once its stream has the times of its spans (`trace_into`): `times()` and
  /// `executed()` are the device's from now on. Without such a run since the last call they are unknown.
  void take_times_of_device() noexcept {
    times_ = times_of_spans(spans_of_device_, executed_);
    std::fill(spans_of_device_.begin(), spans_of_device_.end(), nullptr);
  }
  /// This rank's row of the table, and when the last step has run it.
  [[nodiscard]] std::span<const executed_action> executed() const noexcept { return executed_; }
  /// From now on `watch(number)` is called when the stream has been given action `number` of the row.
  void watch_actions(std::function<void(std::size_t)> watch) { watch_ = std::move(watch); }
  /// This rank's stage, of how many, and the micro-batches of a step.
  [[nodiscard]] schedule::position place() const noexcept {
    return {static_cast<std::size_t>(group_.rank()), table_.stages(), table_.micro_batches()};
  }

 private:
  // Of an action, before those of what it calls.
  [[nodiscard]] static traced_span* add_span(span_log* to, const schedule::action& next) {
    if (to == nullptr) return nullptr;
    const bool waits = next.is_exchange();
    return to->add({.name = waits                                         ? "wait for neighbours"
                            : next.kind == schedule::action_kind::forward ? "forward"
                                                                          : "backward",
                    .micro_batch = waits ? traced_span::none : static_cast<std::uint32_t>(next.micro_batch),
                    .kind = waits ? span_kind::wait : span_kind::action,
                    .lane = span_lane::compute});
  }

  // What a network's stage does in one step.
  template <class Handles, class Inputs, class Loss>
  struct network_pass {
    Handles& handles;
    const Inputs& inputs;
    const Loss& loss;
    where at;

    template <class Scope>
    void forward(const Scope& scope, view<const T, Rank> x) {
      handles.forward(scope, x, [&](std::size_t micro_batch) { return input_of(inputs, micro_batch); }, at);
    }
    template <class Scope>
    void backward(const Scope& scope, view<const T, Rank> dout) {
      handles.backward(scope, dout, loss, at);
    }
    [[nodiscard]] view<const T, Rank> output(std::size_t micro_batch) const { return handles.output(micro_batch); }
    [[nodiscard]] view<const T, Rank> input_gradient(std::size_t micro_batch) const {
      return handles.input_gradient(micro_batch);
    }
    void release(std::size_t micro_batch) { handles.release(micro_batch); }
    void let_go_of_output(std::size_t micro_batch) { handles.let_go_of_output(micro_batch, at); }
    void let_go_of_input(lease_chain& memory) { handles.let_go_of_input(memory); }
  };

  using transfer_list = std::array<p2p, schedule::action::most_transfers>;
  using tensor = tensor_between_stages<T, Wire, Rank>;

  template <class Pass, class Network, class Activations, class See>
  void observe_layers(const Pass& pass, pipeline_stage<Network, Activations>& stage, view<const T, Rank> x, See& see,
                      where at) {
    using layer_type = typename layers_of<Network>::layer_type;
    std::optional<observed<typename Pass::engine_type, layer_type, view<const T, Rank>>> last;
    for (auto& layer : stage.network().layers()) {
      auto next = belay::observe(pass, layer, x, at);
      x = next.out(at);
      last = std::move(next);
    }
    if (!place().last()) {
      tensor outgoing;
      exchange_in_pass(pass.engine(), p2p::send(group_.rank() + 1, outgoing.round(pass.engine(), x, at).flat()), at);
      outgoing.release(pass.engine());
    } else if constexpr (offers_last<Network>) {
      see(belay::observe(pass, stage.network().last(), x, at).out(at));
    } else {
      see(x);
    }
  }
  template <std::size_t Leading>
  [[nodiscard]] extents<Rank> boundary_of(const extents<Leading>& input) const noexcept {
    extents<Rank> shape = boundary_;
    for (std::size_t axis = 0; axis < Leading && axis < Rank; ++axis) shape[axis] = input[axis];
    return shape;
  }

  [[nodiscard]] tensor& received(schedule::payload what, std::size_t micro_batch) noexcept {
    return received_[2 * micro_batch + (what == schedule::payload::gradient ? 1 : 0)];
  }

  template <class Engine, class Stage>
  void compute(const micro_batch_scope<Engine>& scope, Stage& stage, const schedule::action& next, where at) {
    const std::size_t micro_batch = next.micro_batch;
    tensor& activation = received(schedule::payload::activation, micro_batch);
    if (next.kind == schedule::action_kind::forward) {
      activation.widen(scope.engine(), at);
      stage.forward(scope, activation.values());
      if constexpr (requires { stage.let_go_of_input(activation.memory()); })
        stage.let_go_of_input(activation.memory());
      return;
    }
    tensor& gradient = received(schedule::payload::gradient, micro_batch);
    gradient.widen(scope.engine(), at);
    stage.backward(scope, gradient.values());
    gradient.release(scope.engine());
    activation.release(scope.engine());
    if (group_.rank() == 0) stage.release(micro_batch);
  }

  // The compute stream goes on when the exchange is over; the host at once, where that stream is not its own thread.
  template <class Engine, class Stage>
  void exchange(Engine& engine, Stage& stage, const schedule::action& next, transfer_list& transfers, where at) {
    std::size_t count = 0;
    std::array<tensor, schedule::action::most_transfers> outgoing;
    for (const schedule::transfer& one : next.transfers()) {
      p2p& transfer = transfers[count];
      tensor& sent = outgoing[count++];
      if (one.direction == schedule::transfer_direction::receive) continue;
      const view<const T, Rank> exact = one.what == schedule::payload::activation
                                            ? stage.output(one.micro_batch)
                                            : stage.input_gradient(one.micro_batch);
      transfer = p2p::send(static_cast<int>(one.peer), sent.round(engine, exact, at).flat(), tag_of(one));
    }
    // Later work of the stream may not overtake it, nor it what the stream has queued.
    const stream_event ready = engine.compute().record();
    count = 0;
    for (const schedule::transfer& one : next.transfers()) {
      p2p& transfer = transfers[count++];
      if (one.direction == schedule::transfer_direction::send) continue;
      const auto arriving = received(one.what, one.micro_batch).receive(engine, ready, boundary_, at);
      transfer = p2p::receive(static_cast<int>(one.peer), arriving.flat(), tag_of(one));
    }
    exchange_in_order(engine, ready, {transfers.data(), count}, transfers_, at);
    for (tensor& sent : outgoing) sent.release(engine);
    for (const schedule::transfer& one : next.transfers()) {
      if (one.direction != schedule::transfer_direction::send) continue;
      if (one.what == schedule::payload::gradient)
        stage.release(one.micro_batch);
      else if constexpr (requires { stage.let_go_of_output(one.micro_batch); })
        stage.let_go_of_output(one.micro_batch);
    }
  }

  // The same for a tensor of a pass. What is received has been leased before the event, as what is sent.
  template <class Engine>
  void exchange_in_pass(Engine& engine, const p2p& one, where at) {
    if (std::exchange(pass_, engine.epoch()) != engine.epoch()) in_pass_ = 0;  // what passes before had is over
    if (in_pass_ == passed_->size()) passed_->emplace_back();
    p2p& transfer = (*passed_)[in_pass_++];
    transfer = one;
    exchange_in_order(engine, engine.compute().record(), {&transfer, 1}, passed_, at);
  }

  // A received tensor's memory, and that of a sent one after it, may still be read by what the stream has queued.
  // `kept` has the transfers.
  template <class Engine>
  void exchange_in_order(Engine& engine, const stream_event& ready, std::span<const p2p> transfers,
                         const std::shared_ptr<const void>& kept, where at) {
    auto& stream = engine.compute();
    const auto used_until = [&](const stream_event& over) {
      for (const p2p& one : transfers) engine.activations().used_until(over, one.data, one.bytes);
    };
    if constexpr (can_start_exchange<Group>) {
      if (runs_later(stream)) {
        pending under_way = group_.start_exchange(transfers, start_order(after(ready, at)).keeping(kept));
        used_until(under_way.event());
        return std::move(under_way).then(stream, at);
      }
    }
    stream.synchronize();
    belay::exchange(group_, transfers, at);
    used_until(ready);
  }

  [[nodiscard]] static int tag_of(const schedule::transfer& one) noexcept {
    return static_cast<int>(2 * one.micro_batch + (one.what == schedule::payload::gradient ? 1 : 0));
  }

  Group group_;
  Table table_;
  extents<Rank> boundary_;
  std::vector<tensor> received_;
  // Of each action: a started exchange reads them, also where nobody waits for it any more.
  std::shared_ptr<std::vector<transfer_list>> transfers_ = std::make_shared<std::vector<transfer_list>>();
  // And those of one pass, which stay where they are.
  std::shared_ptr<std::deque<p2p>> passed_ = std::make_shared<std::deque<p2p>>();
  std::size_t in_pass_ = 0;
  std::uint64_t pass_ = 0;  // an epoch
  pipeline_times times_;
  std::vector<executed_action> executed_;
  std::vector<const traced_span*> spans_of_device_;  // of the last run; null: it was not traced
  std::function<void(std::size_t)> watch_;
  std::int64_t last_ = 0;
};

template <schedule::any_table Table, class T, std::size_t Rank, class Wire>
pipeline(const mesh&, Table, stage_boundary<T, Rank, Wire>) -> pipeline<T, group, Table, Rank, Wire>;

}  // namespace belay::inline BELAY_ABI
