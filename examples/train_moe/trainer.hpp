// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a training run: its machine, its parameters and their optimizer, and the loop body. Every call is
// collective over the world unless its comment says otherwise.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/device/arena.hpp"
#include "belay/parallel/bucket.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/train/clip.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/plan.hpp"
#include "model/products.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/machine.hpp"
#include "train_moe/parameters.hpp"
#include "train_moe/plan_text.hpp"
#include "train_moe/rehearse.hpp"
#include "train_moe/report_table.hpp"

namespace train_moe {

/// The result of a step, the same on every rank.
struct step_result {
  double loss = 0;  // cross-entropy per target, nats
  double aux_loss = 0;
  double grad_norm = 0;  // before clipping
  double bubble = 0;
  double bubble_predicted = 0;
  std::size_t targets = 0;
  std::size_t replays = 0;  // how often the step was run again with more room
};

template <class T, class Rank>
class trainer {
 public:
  using group_type = typename Rank::group_type;
  using machine_type = train_moe::machine<T, Rank, model::host_engine>;
  using buckets_type = belay::gradient_buckets<T, group_type>;

  /// `source` outlives the trainer; `plan` is that of `run`.
  trainer(const options& run, Rank& rank, const batch_source& source, const run_plan& plan)
      : source_(&source),
        capacity_rows_(plan.capacity_rows),
        machine_(run, rank, meters_[belay::tier::device], plan.memory[static_cast<std::size_t>(rank.number())],
                 capacity_rows_),
        buckets_(bucket_members<T>(machine_.model()), families_of(run, machine_.mesh()), run.bucket_bytes,
                 machine_.shape().micro_batches, make_norm_table<T>(run).unit()),
        table_(run) {
    make_persistent();
    make_staging();
    norm_.emplace(make_norm_table<T>(run), norm_places<T>(machine_), norm_memory_);
    machine_.stage().set_batch(batch_);
    machine_.model().for_each_parameter([&](auto& parameter) { parameter.initialise(run.seed); });
    note_plan(plan);
  }
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  /// Trains one step, `number` from 1, replaying it with more room for experts as often as needed. Throws
  /// plan_refused when that room is beyond the budget, belay::error when the step is refused.
  step_result train(std::size_t number) {
    step_result result;
    fill_batch(number, result);
    for (;; ++result.replays) {
      meters_[belay::tier::device].restart_peak();
      const std::size_t needed = attempt(result);
      if (needed == 0) break;
      grow(needed);
    }
    report(result);
    return result;
  }

  [[nodiscard]] machine_type& machine() noexcept { return machine_; }
  [[nodiscard]] buckets_type& buckets() noexcept { return buckets_; }
  [[nodiscard]] const belay::tier_meters& meters() const noexcept { return meters_; }
  [[nodiscard]] std::size_t capacity_rows() const noexcept { return capacity_rows_; }
  /// The numbers all ranks shared at the end of the last step; see report_table for their places.
  [[nodiscard]] std::span<const double> shared() const noexcept { return shared_; }
  [[nodiscard]] const report_table& table() const noexcept { return table_; }

  /// Called with the reduced, divided gradients before they are applied: for tests that compare them.
  void on_gradients(void (*hook)(void*, trainer&), void* context) noexcept {
    hook_ = hook;
    hook_context_ = context;
  }

 private:
  using clock = std::chrono::steady_clock;

  void make_persistent() {
    const auto ranks = ranks_in_families(machine_.mesh());
    const auto& layout = buckets_.layout();
    const std::size_t elements = layout.elements();
    const std::size_t gradient_elements = layout.gradient_elements();
    const std::size_t state = belay::adamw_state_elements(layout, ranks);
    const std::size_t bytes = belay::leased_size(elements * sizeof(T)) +
                              belay::leased_size(gradient_elements * sizeof(T)) + belay::leased_size(state * sizeof(T));
    persistent_.emplace(belay::tier::device, belay::host_pages{bytes}, std::size_t{8}, meters_[belay::tier::device]);
    const auto values = persistent_->lease<T>(belay::extents<1>{elements}, leases_);
    const auto gradients = persistent_->lease<T>(belay::extents<1>{gradient_elements}, leases_);
    buckets_.bind(values.flat(), gradients.flat());
    const auto& run = machine_.run();
    belay::adamw_settings settings;
    settings.learning_rate = run.learning_rate;
    settings.beta1 = 0.9;
    settings.beta2 = 0.95;
    settings.epsilon = 1e-8;
    settings.decay = 0.1;
    optimizer_.emplace(settings, buckets_, persistent_->lease<T>(belay::extents<1>{state}, leases_).flat());
  }

  void make_staging() {
    const auto& run = machine_.run();
    const auto& shape = machine_.shape();
    const std::size_t entries = make_norm_table<T>(run).entries();
    const std::size_t bytes = 2 * batch_bytes(run) + belay::leased_size(entries * sizeof(double)) +
                              belay::leased_size(table_.size() * sizeof(double));
    staging_.emplace(belay::tier::host, belay::host_pages{bytes}, std::size_t{8}, meters_[belay::tier::host]);
    const belay::extents<3> batch_extents{shape.micro_batches, shape.sequences, shape.length};
    batch_ = {staging_->lease<std::int32_t>(batch_extents, leases_),
              staging_->lease<std::int32_t>(batch_extents, leases_)};
    norm_memory_ = staging_->lease<double>(belay::extents<1>{entries}, leases_).flat();
    shared_ = staging_->lease<double>(belay::extents<1>{table_.size()}, leases_).flat();
  }

  // This rank's slice of the global batch: micro-batches are divided over data, their sequences over expert.
  void fill_batch(std::size_t number, step_result& result) {
    const auto& shape = machine_.shape();
    const auto& place = machine_.mesh().coordinate();
    const std::size_t first_batch = static_cast<std::size_t>(place.data) * shape.micro_batches;
    const std::size_t first_sequence = static_cast<std::size_t>(place.expert) * shape.sequences;
    for (std::size_t m = 0; m < shape.micro_batches; ++m) {
      for (std::size_t s = 0; s < shape.sequences; ++s) {
        source_->sequence(number, first_batch + m, first_sequence + s, batch_.tokens[m][s].flat(),
                          batch_.targets[m][s].flat());
      }
    }
    std::uint64_t targets[1] = {0};
    for (std::int32_t target : batch_.targets.flat()) targets[0] += target == model::ignored ? 0U : 1U;
    machine_.mesh().replicas().all_reduce(std::span<std::uint64_t>(targets), belay::sum);
    result.targets = targets[0];
    const auto& run = machine_.run();
    if (run.mean == loss_mean::micro_batches) weigh_micro_batches(result.targets);
    machine_.model().set_balance_scale(run.balance_coefficient * static_cast<double>(result.targets) /
                                       static_cast<double>(run.micro_batches * run.model.layers));
  }

  // Every micro-batch has the same weight, whatever its number of targets.
  void weigh_micro_batches(std::size_t all_targets) {
    const auto& run = machine_.run();
    for (std::size_t m = 0; m < machine_.shape().micro_batches; ++m) {
      std::uint64_t own[1] = {model::target_count(batch_.targets[m])};
      machine_.mesh().expert().all_reduce(std::span<std::uint64_t>(own), belay::sum);
      machine_.stage().set_loss_scale(
          m, static_cast<double>(all_targets) / static_cast<double>(own[0] * run.micro_batches));
    }
  }

  // Returns 0 when the step was committed and applied, or the rows that it needs room for.
  std::size_t attempt(step_result& result) {
    belay::step step{machine_.engine()};
    std::optional<belay::reduced_gradients<T>> gradients;
    std::optional<belay::gradient_norm_value> norm;
    try {
      buckets_.begin(machine_.shape().micro_batches);
      machine_.run_pipeline(step);
      gradients.emplace(buckets_.finish(belay::target_tokens{result.targets}));
      if (hook_ != nullptr) hook_(hook_context_, *this);
      norm.emplace((*norm_)(*gradients, machine_.mesh().control()));
    } catch (const belay::comm_error&) {
      step.cut_off();  // what a peer's failure left open is not this rank's mistake
      throw;
    }
    result.grad_norm = norm->value();
    const auto overflow = machine_.exchange().take_overflow();
    step.observe({.non_finite = norm->finite() ? 0U : 1U, .needed_rows = overflow.rows_wanted()});
    auto outcome = std::move(step).commit(belay::world_vote{machine_.mesh().control()});
    if (const auto* more = belay::replay(outcome)) return static_cast<std::size_t>(more->needed_rows);
    if (const auto* bad = belay::refused(outcome)) throw belay::error(belay::text(*bad), belay::where::current());
    optimizer_->apply(*belay::committed(outcome), std::move(*gradients), norm->clip(1.0));
    return 0;
  }

  void grow(std::size_t needed) {
    const auto& run = machine_.run();
    // An eighth beyond what was needed, so that a drifting router does not replay every step.
    capacity_rows_ = std::min(std::max(needed + needed / 8, capacity_rows_ + 1), most_rows(run));
    const run_plan plan = rehearse_all<T>(run, capacity_rows_);
    if (const auto shortage = plan.ranks.shortage(run.budget)) refuse(plan.ranks, *shortage, run);
    machine_.resize(plan.memory[static_cast<std::size_t>(machine_.mesh().control().rank())], capacity_rows_);
    note_plan(plan);
  }

  void note_plan(const run_plan& plan) {
    const auto& own = plan.ranks.ranks()[static_cast<std::size_t>(machine_.mesh().control().rank())];
    planned_device_ = own.peak_bytes(belay::tier::device);
    planned_host_ = own.peak_bytes(belay::tier::host);
  }

  // Fills this rank's entries of the shared table, and sums the tables of all ranks.
  void report(step_result& result) {
    std::fill(shared_.begin(), shared_.end(), 0.0);
    const auto& run = machine_.run();
    const auto& shape = machine_.shape();
    const auto& place = machine_.mesh().coordinate();
    const std::size_t first_batch = static_cast<std::size_t>(place.data) * shape.micro_batches;
    if (machine_.model().has_head()) {
      for (std::size_t m = 0; m < shape.micro_batches; ++m)
        shared_[table_.loss(first_batch + m)] = machine_.stage().loss_sums()[m];
    }
    auto& statistics = machine_.exchange().statistics();
    if (run.mesh.expert > 1) machine_.mesh().expert().all_reduce(statistics.probability_sums(), belay::sum);
    for (std::size_t l = 0; l < shape.layers && place.expert == 0; ++l) {
      const std::size_t layer = static_cast<std::size_t>(place.pipeline) * shape.layers + l;
      for (std::size_t m = 0; m < shape.micro_batches; ++m) {
        shared_[table_.balance(layer, first_batch + m)] = statistics.balance(l, m);
        const std::int64_t* selections = &statistics.selections()[(l * shape.micro_batches + m) * run.model.experts];
        for (std::size_t e = 0; e < run.model.experts; ++e)
          shared_[table_.tokens(layer, e)] += static_cast<double>(selections[e]);
      }
    }
    const auto rank = static_cast<std::size_t>(machine_.mesh().control().rank());
    const auto put = [&](report_table::number which, double value) { shared_[table_.of_rank(rank, which)] = value; };
    const auto& device = meters_[belay::tier::device];
    const auto& host = meters_[belay::tier::host];
    const auto& times = machine_.pipeline().times();
    put(report_table::live_device, static_cast<double>(device.live_bytes()));
    put(report_table::peak_device, static_cast<double>(device.peak_bytes()));
    put(report_table::planned_device, static_cast<double>(planned_device_));
    put(report_table::live_host, static_cast<double>(host.live_bytes()));
    put(report_table::peak_host, static_cast<double>(host.peak_bytes()));
    put(report_table::planned_host, static_cast<double>(planned_host_));
    put(report_table::device_allocations, static_cast<double>(device.allocations()));
    put(report_table::host_allocations, static_cast<double>(host.allocations()));
    put(report_table::open_obligations, static_cast<double>(machine_.engine().obligations().open_count()));
    put(report_table::bubble, times.bubble());
    put(report_table::forward_seconds, times.forward / static_cast<double>(shape.micro_batches));
    put(report_table::backward_seconds, times.backward / static_cast<double>(shape.micro_batches));
    machine_.mesh().control().all_reduce(shared_, belay::sum);
    summarise(result);
  }

  void summarise(step_result& result) const {
    const auto& run = machine_.run();
    double loss = 0;
    for (std::size_t m = 0; m < run.micro_batches; ++m) loss += shared_[table_.loss(m)];
    result.loss = loss / static_cast<double>(result.targets);
    double aux = 0;
    for (std::size_t layer = 0; layer < run.model.layers; ++layer)
      for (std::size_t m = 0; m < run.micro_batches; ++m) aux += shared_[table_.balance(layer, m)];
    result.aux_loss = aux / static_cast<double>(run.model.layers * run.micro_batches);
  }

  const batch_source* source_;
  std::size_t capacity_rows_;
  belay::tier_meters meters_;
  machine_type machine_;
  buckets_type buckets_;
  report_table table_;
  std::optional<belay::arena<belay::host_pages>> persistent_;
  std::optional<belay::arena<belay::host_pages>> staging_;
  belay::lease_chain leases_;
  std::optional<belay::adamw<T, group_type>> optimizer_;
  std::optional<belay::gradient_norm<T>> norm_;
  batch batch_;
  std::span<double> norm_memory_;
  std::span<double> shared_;
  std::size_t planned_device_ = 0;
  std::size_t planned_host_ = 0;
  void (*hook_)(void*, trainer&) = nullptr;
  void* hook_context_ = nullptr;
};

}  // namespace train_moe
