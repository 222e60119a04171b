// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What one rank needs to run steps: its coordinate in the mesh, its part of the model, the arena of its step, the
// symmetric memory of its experts, and its row of the schedule. Over rehearsal memory and a rehearsal rank the same
// class is the plan: it runs the same code and computes nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "belay/comm/mesh.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/step.hpp"
#include "model/mixtral.hpp"
#include "train_moe/options.hpp"
#include "train_moe/stage.hpp"

namespace train_moe {

/// Bytes of the two regions that a step leases from.
struct step_memory {
  std::size_t activations = 0;
  std::size_t windows = 0;
};

[[nodiscard]] inline belay::schedule::dynamic_table schedule_of(const options& run) {
  const auto stages = static_cast<std::size_t>(run.mesh.pipeline);
  const std::size_t micro_batches = batch_shape(run).micro_batches;
  return run.schedule == schedule_kind::gpipe ? belay::schedule::gpipe(stages, micro_batches)
                                              : belay::schedule::one_f_one_b(stages, micro_batches);
}

template <class T, class Rank, class Engine>
class machine {
 public:
  using group_type = typename Rank::group_type;
  using mesh_type = belay::mesh<Rank>;
  using heap_type = belay::symmetric_heap<group_type>;
  using exchange_type = belay::expert_exchange<T, group_type>;
  using model_type = model::mixtral<T, exchange_type>;
  using stage_type = model_stage<T, Engine, model_type>;
  using pipeline_type = belay::pipeline<T, group_type, belay::schedule::dynamic_table>;

  /// Collective over the world. `device` is the meter of this rank's device tier and outlives the machine.
  machine(const options& run, Rank& rank, belay::tier_meter& device, step_memory memory, std::size_t capacity_rows)
      : run_(run),
        shape_(run),
        device_(&device),
        mesh_(rank, run.mesh),
        pipeline_(mesh_.pipeline(), schedule_of(run), {shape_.sequences, shape_.length, run.model.hidden}) {
    make_step_memory(memory, capacity_rows);
    const auto& place = mesh_.coordinate();
    model_.emplace(run.model,
                   model::model_part::of(run.model, static_cast<std::size_t>(place.pipeline),
                                         static_cast<std::size_t>(run.mesh.pipeline)),
                   model::expert_range{exchange_->first_local_expert(), exchange_->local_experts()}, *exchange_);
    stage_.emplace(*model_, run.recompute, shape_.micro_batches);
  }
  machine(const machine&) = delete;  // the model and its handles point into it
  machine& operator=(const machine&) = delete;

  /// Replaces arena and symmetric memory by larger ones, between steps. Collective over the world.
  void resize(step_memory memory, std::size_t capacity_rows) {
    stage_->forget();
    exchange_.reset();
    heap_.reset();
    const std::uint64_t steps = engine_->step_number();
    engine_.reset();
    make_step_memory(memory, capacity_rows);
    engine_->continue_after(steps);
  }

  /// Forward and backward of all micro-batches of a step. Collective over the world.
  void run_pipeline(const belay::step<Engine>& step) {
    exchange_->begin_step();
    pipeline_.run(step, *stage_);
  }

  [[nodiscard]] const options& run() const noexcept { return run_; }
  [[nodiscard]] const batch_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] const mesh_type& mesh() const noexcept { return mesh_; }
  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] heap_type& windows() noexcept { return *heap_; }
  [[nodiscard]] exchange_type& exchange() noexcept { return *exchange_; }
  [[nodiscard]] model_type& model() noexcept { return *model_; }
  [[nodiscard]] stage_type& stage() noexcept { return *stage_; }
  [[nodiscard]] const pipeline_type& pipeline() const noexcept { return pipeline_; }
  [[nodiscard]] belay::tier_meter& device() noexcept { return *device_; }
  /// Sequences of full length that an expert group can evaluate at once whatever their routing: the capacity holds
  /// them even if every token chooses experts of the same rank. At least 1, at most a training micro-batch.
  [[nodiscard]] std::size_t evaluation_sequences() const {
    const std::size_t local = exchange_->local_experts();
    const std::size_t choices = run_.model.experts_per_token < local ? run_.model.experts_per_token : local;
    const std::size_t fits = exchange_->shape().capacity / (choices * shape_.length);
    return std::clamp<std::size_t>(fits, 1, run_.micro_batch_size);
  }
  /// Those of them that one rank takes at most.
  [[nodiscard]] std::size_t evaluation_sequences_of_rank() const {
    const auto ranks = static_cast<std::size_t>(run_.mesh.expert);
    return (evaluation_sequences() + ranks - 1) / ranks;
  }

 private:
  void make_step_memory(step_memory memory, std::size_t capacity_rows) {
    engine_.emplace(typename Engine::memory_type{memory.activations}, *device_);
    heap_.emplace(mesh_.expert(), belay::symmetric_heap_options{.bytes = memory.windows, .meter = device_});
    exchange_.emplace(
        mesh_.expert(), *heap_,
        belay::expert_settings{run_.model.experts, run_.model.experts_per_token, run_.model.hidden, capacity_rows});
    const auto stage = static_cast<std::size_t>(mesh_.coordinate().pipeline);
    exchange_->prepare(stage * shape_.layers, shape_.layers, shape_.micro_batches);
  }

  options run_;
  batch_shape shape_;
  belay::tier_meter* device_;
  mesh_type mesh_;
  pipeline_type pipeline_;
  std::optional<Engine> engine_;
  std::optional<heap_type> heap_;
  std::optional<exchange_type> exchange_;  // the model's layers point to it, so it is replaced in place
  std::optional<model_type> model_;
  std::optional<stage_type> stage_;
};

}  // namespace train_moe
