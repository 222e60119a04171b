// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs one rank's row of a schedule. The table that was proven is executed action by action
// (parallel/pipeline/runner.hpp). The library owns the received tensors, so a stage only computes.
//
//   belay::pipeline pipeline{mesh, belay::schedule::one_f_one_b(4, 16), belay::boundary<float>({8, 128, width})};
//   belay::pipeline_stage stage{net};  // this rank's part of the network
//   belay::step step{run.engine(), store};
//   pipeline.run(step, stage, tokens, [&](const auto& scope, auto logits) {
//     return belay::cross_entropy(scope, logits, targets[scope.micro_batch()]);
//   });
//   const double waiting = pipeline.times().bubble();
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/comm/group.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/offset_allocator.hpp"
#include "belay/parallel/pipeline/runner.hpp"
#include "belay/parallel/pipeline/stage_interface.hpp"
#include "belay/parallel/pipeline/typed_stage.hpp"
#include "belay/parallel/pipeline_stage.hpp"
#include "belay/parallel/schedule/table.hpp"
#include "belay/step/forward_only.hpp"
#include "belay/step/observed.hpp"
#include "belay/step/step.hpp"

namespace belay::inline BELAY_ABI {

/// The tensors between the stages of a pipeline: their element type and shape. They are rounded to `Wire` where they
/// leave a stage, and have their own type again in the next one: half the bytes for `boundary<float, bf16>({...})`.
template <class T, std::size_t Rank, class Wire = T>
struct stage_boundary {
  /// The shape of the tensor that one micro-batch hands from stage to stage.
  extents<Rank> shape;
};
template <class T, class Wire = T, std::size_t Rank>
[[nodiscard]] constexpr stage_boundary<T, Rank, Wire> boundary(const std::size_t (&shape)[Rank]) noexcept {
  return {extents_of(shape)};
}

/// The stages of a rank, by chunk: pointers, which the caller keeps.
template <class Stage>
using stages_of_rank = std::span<Stage* const>;

/// One rank's part in a pipeline of tensors of T. `Wire` is what they are sent as.
template <class T, std::size_t Rank = 3, transferable Wire = T>
class pipeline {
 public:
  /// Over the pipeline axis of `mesh`.
  template <schedule::any_table Table>
  pipeline(const belay::mesh& mesh, Table table, stage_boundary<T, Rank, Wire> boundary, where at = where::current())
      : pipeline(mesh.pipeline(at), std::move(table), boundary.shape, at) {}
  /// `of` is the mesh's pipeline axis: its size is the table's number of stages. `boundary` is the shape of the tensors
  /// between stages. Throws usage_error with the reason where the table cannot run.
  template <schedule::any_table Table>
  pipeline(group of, Table table, extents<Rank> boundary, where at = where::current())
      : boundary_(boundary),
        runner_(std::move(of), schedule::to_dynamic(std::move(table)), boundary_elements::of<T, Wire>(), boundary, at) {
  }

  /// The schedule that it runs.
  [[nodiscard]] const schedule::dynamic_table& table() const noexcept { return runner_.table(); }

  /// From the next run on, the two computes of each pair in the table run in turns: where layers of one have started an
  /// exchange that they wait for next, the other computes (step/flow_pair.hpp). `schedule::with_pairs` gives a table
  /// pairs. Without this call, and where nothing is exchanged, they run one after the other. Throws budget_error where
  /// there is no room for a stack.
  void overlap_pairs(where at = where::current()) { runner_.overlap_pairs(at); }
  /// How many pairs this rank runs in a step.
  [[nodiscard]] std::size_t pairs() const noexcept { return runner_.pairs(); }

  /// Runs all micro-batches of the step forward and backward through the stages. `inputs` is a view whose first axis is
  /// the micro-batch, or called as `inputs(micro_batch)`; the first stage reads it, and its memory stays until the step
  /// has ended. `loss(scope, output)` is called on the last stage for every micro-batch, `scope.micro_batch()`, and
  /// returns what `belay::cross_entropy` does: the step notes the loss, and the gradient goes backwards. Collective
  /// along the pipeline. `times()` has the times afterwards. Throws usage_error where the network is no part for this
  /// stage, or `inputs` have too few micro-batches.
  template <class Engine, class... Participants, class Network, class Activations, class Inputs, class Loss>
  void run(const step<Engine, Participants...>& step, pipeline_stage<Network, Activations>& stage, const Inputs& inputs,
           const Loss& loss, where at = where::current()) {
    pipeline_stage<Network, Activations>* const one[] = {&stage};
    run(step, stages_of_rank<pipeline_stage<Network, Activations>>(one), inputs, loss, at);
  }
  /// Of a rank that holds several stages, by chunk. Throws usage_error where there are not as many as the table has.
  template <class Engine, class... Participants, class Network, class Activations, class Inputs, class Loss>
  void run(const step<Engine, Participants...>& step, stages_of_rank<pipeline_stage<Network, Activations>> stages,
           const Inputs& inputs, const Loss& loss, where at = where::current()) {
    constexpr bool indexed = gives_micro_batches<Inputs>;
    static_assert(indexed,
                  "belay: the inputs of a pipeline are a view whose first axis is the micro-batch, or are called as "
                  "inputs(micro_batch) and return a view");
    if constexpr (indexed) {
      using input_type = decltype(input_of(inputs, std::size_t{}));
      if constexpr (runs_as_network<Network, Engine, T, Rank, input_type>()) {
        if constexpr (gives_loss<Network, Loss, Engine, T, Rank>()) {
          runner_.expect_stages(stages.size(), at);
          const auto pass_of = [&](std::size_t chunk) {
            auto& handles = stages[chunk]->template handles<Engine, T, Rank, input_type>(place(chunk), at);
            return network_pass<std::remove_reference_t<decltype(handles)>, Inputs, Loss>{handles, inputs, loss, at};
          };
          for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
            if (place(chunk).first()) expect_micro_batches(inputs, place(chunk).micro_batches, at);
            static_cast<void>(pass_of(chunk));  // refuses a network that is no part for its place, before any runs
          }
          run_stages(step, pass_of, at);
        }
      }
    }
  }

  /// Runs all micro-batches of the step forward and backward through a stage of one's own. Collective along the
  /// pipeline. `times()` has the times afterwards.
  template <class Engine, class... Participants, runs_as_stage<T, Engine, Rank> Stage>
  void run(const step<Engine, Participants...>& step, Stage& stage, where at = where::current()) {
    Stage* const one[] = {&stage};
    run(step, stages_of_rank<Stage>(one), at);
  }
  /// Of a rank that holds several stages of one's own, by chunk.
  template <class Engine, class... Participants, runs_as_stage<T, Engine, Rank> Stage>
  void run(const step<Engine, Participants...>& step, stages_of_rank<Stage> stages, where at = where::current()) {
    runner_.expect_stages(stages.size(), at);
    run_stages(step, [&](std::size_t chunk) -> Stage& { return *stages[chunk]; }, at);
  }

  /// Runs one micro-batch forward through all stages, for evaluation: `see(output)` is called on the last one with what
  /// the network puts out. All ranks give an `input` of the same shape, of which the first stage reads the values; the
  /// tensors between stages have its extents, and the boundary's where it has none. Collective along the pipeline.
  template <class Engine, class... Participants, class Network, class Activations, class Input, class See>
  void observe(const forward_only<Engine, Participants...>& pass, pipeline_stage<Network, Activations>& stage,
               const Input& input, See&& see, where at = where::current()) {
    pipeline_stage<Network, Activations>* const one[] = {&stage};
    observe(pass, stages_of_rank<pipeline_stage<Network, Activations>>(one), input, see, at);
  }
  /// Of a rank that holds several stages, by chunk.
  template <class Engine, class... Participants, class Network, class Activations, class Input, class See>
  void observe(const forward_only<Engine, Participants...>& pass,
               stages_of_rank<pipeline_stage<Network, Activations>> stages, const Input& input, See&& see,
               where at = where::current()) {
    if constexpr (runs_as_network<Network, Engine, T, Rank, Input>()) {
      runner_.expect_stages(stages.size(), at);
      for (std::size_t stage = 0, end = 0; stage < table().stages(); stage = end) {
        end = stage + 1;
        if (!runner_.holds(stage)) continue;
        while (end < table().stages() && runner_.holds(end)) ++end;
        const auto from_layers = [&](view<const T, Rank> x) { observe_stages(pass, stages, stage, end, x, see, at); };
        if (stage > 0) {
          typed_engine<Engine, T, Wire> engine(pass.engine());
          tensor_between_stages incoming;
          const extents<Rank> shape = boundary_of(input.shape());
          const void* const received = runner_.receive_in_pass(engine, stage, shape, incoming, at);
          from_layers(view<const T, Rank>(static_cast<const T*>(received), shape));
          incoming.release(engine);
        } else if constexpr (offers_first<Network>) {
          auto& own = *stages[table().chunk_of(stage)];
          own.expect_part(place(table().chunk_of(stage)), at);
          const auto embedded = belay::observe(pass, own.network().first(), input, at);
          from_layers(embedded.out(at));
        } else {
          from_layers(input);
        }
      }
    }
  }

  /// Times of this rank's last run.
  [[nodiscard]] const pipeline_times& times() const noexcept { return runner_.times(); }
  /// Of a run on a device, in a traced step, once its stream has the times of its spans (`trace_into`): `times()` and
  /// `executed()` are the device's from now on. Without such a run since the last call they are unknown.
  void take_times_of_device() noexcept { runner_.take_times_of_device(); }
  /// This rank's row of the table, and when the last step has run it.
  [[nodiscard]] std::span<const executed_action> executed() const noexcept { return runner_.executed(); }
  /// From now on `by.given(number)` is called when the stream has been given action `number` of the row. It outlives
  /// the last run.
  void watch_actions(action_observer& by) noexcept { runner_.watch_actions(by); }
  /// The stage that is this rank's chunk, of how many, and the micro-batches of a step.
  [[nodiscard]] schedule::position place(std::size_t chunk = 0) const noexcept { return runner_.place(chunk); }

 private:
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
    template <class Scope>
    void backward_input(const Scope& scope, view<const T, Rank> dout) {
      handles.backward(scope, dout, loss, at, backward_extent::input_alone);
    }
    template <class Scope>
    void weights(const Scope& scope) {
      handles.weights(scope.micro_batch(), at);
    }
    [[nodiscard]] view<const T, Rank> output(std::size_t micro_batch) const { return handles.output(micro_batch); }
    [[nodiscard]] view<const T, Rank> input_gradient(std::size_t micro_batch) const {
      return handles.input_gradient(micro_batch);
    }
    void release(std::size_t micro_batch) { handles.release(micro_batch); }
    void let_go_of_output(std::size_t micro_batch) { handles.let_go_of_output(micro_batch, at); }
    void let_go_of_input(lease_chain& memory) { handles.let_go_of_input(memory); }
  };

  template <class Engine, class... Participants, class Stages>
  void run_stages(const step<Engine, Participants...>& step, const Stages& stages, where at) {
    step.micro_batches(table().micro_batches(), at);
    typed_engine<Engine, T, Wire> engine(step.engine());
    const auto places = [&](std::size_t chunk) { return place(chunk); };
    typed_stages<Engine, T, Rank, Stages, decltype(places)> computes(step.engine(), stages, places, boundary_);
    runner_.run(engine, computes, at);
  }

  // The layers of stages [first, end), which follow each other on this rank.
  template <class Pass, class Stage, class See>
  void observe_stages(const Pass& pass, stages_of_rank<Stage> stages, std::size_t first, std::size_t end,
                      view<const T, Rank> x, See& see, where at) {
    using network_type = typename Stage::network_type;
    using layer_type = typename layers_of<network_type>::layer_type;
    std::optional<observed<typename Pass::engine_type, layer_type, view<const T, Rank>>> last;
    for (std::size_t stage = first; stage < end; ++stage) {
      Stage& own = *stages[table().chunk_of(stage)];
      own.expect_part(place(table().chunk_of(stage)), at);
      for (auto& layer : own.network().layers()) {
        auto next = belay::observe(pass, layer, x, at);
        x = next.out(at);
        last = std::move(next);
      }
    }
    if (end < table().stages()) {
      typed_engine<typename Pass::engine_type, T, Wire> engine(pass.engine());
      runner_.send_in_pass(engine, end - 1, {x.data(), x.size()}, at);
    } else if constexpr (offers_last<network_type>) {
      see(belay::observe(pass, stages[table().chunk_of(end - 1)]->network().last(), x, at).out(at));
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

  extents<Rank> boundary_;
  pipeline_runner runner_;
};

template <schedule::any_table Table, class T, std::size_t Rank, class Wire>
pipeline(const mesh&, Table, stage_boundary<T, Rank, Wire>) -> pipeline<T, Rank, Wire>;

}  // namespace belay::inline BELAY_ABI
