// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One rank of a training run: its parts of the model, the store of its parameters, its stages of the pipeline, and the
// loop body. It runs on the ranks of any backend, and in a rehearsal. Every call is collective over the world unless
// its comment says otherwise.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/span_log.hpp"
#include "belay/device/stream.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/step.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/loss.hpp"
#include "belay/train/memory_report.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/staged.hpp"
#include "belay/train/step_graphs.hpp"
#include "belay/train/store.hpp"
#include "model/cross_entropy.hpp"
#include "model/mixtral_parts.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/options.hpp"
#include "train_moe/rank_trainer.hpp"
#include "train_moe/report_table.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

/// `Parts` are the parts of the model that are trained.
template <class T, class Run, class Parts = model::trains_all>
class trainer {
 public:
  using run_type = Run;
  using group_type = typename Run::group_type;
  using exchange_type = belay::expert_exchange<T>;
  using model_type = model::mixtral_parts<T, exchange_type, Parts>;
  using engine_type = typename Run::engine_type;
  using logit_type = belay::compute_type_t<T>;
  using logits_view = belay::view<const logit_type, 3>;
  using store_type = belay::parameter_store<Run, belay::precision<T>>;
  using network_type = belay::gathering_network<typename model_type::part_type, store_type>;
  using activations_type = belay::offloaded_activations<engine_type>;
  using stage_type = belay::pipeline_stage<network_type, activations_type>;

  /// `run` and `source` outlive the trainer.
  trainer(const options& settings, belay::rank& rank, Run& run, const batch_source& source)
      : settings_(settings),
        shape_(settings),
        run_(&run),
        source_(&source),
        mesh_(rank, settings.mesh),
        schedule_(schedule_of_all(settings)),
        exchange_(run, mesh_.expert(), experts_of(settings)),
        model_(settings.model, parts_of_rank(settings, schedule_, rank_in_pipeline()),
               {exchange_.first_local_expert(), exchange_.local_experts()}, exchange_),
        store_(run, mesh_, model_, settings.zero,
               {.seed = settings.seed,
                .bucket_bytes = settings.bucket_bytes,
                .whole_below = settings.whole_below,
                .reshard = settings.reshard,
                .parameters = settings.parameter_tier,
                .gradients = settings.gradient_tier,
                .files = files_of(settings)}),
        optimizer_(store_, {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1},
                   {.state = settings.optimizer_tier, .folder = settings.tier_folder, .chunk = settings.tier_chunk}),
        graphs_(mesh_, store_, optimizer_, settings.graphs),
        pipeline_(mesh_.pipeline(), schedule_, {shape_.sequences, shape_.length, settings.model.hidden}),
        activations_(run, settings.activation_tier, files_of(settings)),
        layers_(model_.layer_numbers()),
        table_(settings, schedule_.stages()),
        computes_(schedule_.chunks() * report_table::kinds),
        tokens_(run, shape_.micro_batches * shape_.rows(), "batch"),
        targets_(run, tokens_.size(), "batch"),
        positions_(run, model_.positions().size(), "positions"),
        loss_sums_(run, shape_.micro_batches, "report"),
        selections_(run, layers_.size() * shape_.micro_batches * settings.model.experts, "report"),
        probability_sums_(run, selections_.size(), "report"),
        statistics_(layers_.size(), shape_.micro_batches, settings.model.experts, settings.model.experts_per_token,
                    selections_.values(), probability_sums_.values()),
        shared_(run.template lease<double>(belay::tier::host, table_.size(), "report")),
        memory_(run, mesh_),
        checkpoints_(run, mesh_,
                     {.folder = settings.checkpoint.folder,
                      .every = settings.checkpoint.every,
                      .keep = settings.checkpoint.keep,
                      .stop = settings.checkpoint.stop}),
        loss_scales_(shape_.micro_batches, 1.0) {
    for (auto& part : model_.parts()) {
      network_type& network = networks_.emplace_back(part, store_);
      stages_.push_back(&own_stages_.emplace_back(
          network, [&](std::size_t) { return settings.recompute == recompute_kind::full; }, activations_));
    }
    if (settings.overlap_pairs) pipeline_.overlap_pairs();
    if (settings.recompute == recompute_kind::selective) model_.recompute_attention(belay::recomputes::yes);
    checkpoints_.add(store_, optimizer_);
    for (const belay::executed_action& each : pipeline_.executed())
      if (!each.exchanged) ++computes_[computes_of(each)];
    positions_.write([this](auto table) { model_.positions().fill(table); });
    model_.use_positions(positions_.data());
    exchange_.prepare(layers_, {layers_.size(),
                                shape_.micro_batches,
                                settings.model.experts,
                                settings.model.experts_per_token,
                                {selections_.data(), selections_.size()},
                                {probability_sums_.data(), probability_sums_.size()}});
  }
  trainer(const trainer&) = delete;  // the model and its handles point into it
  trainer& operator=(const trainer&) = delete;

  /// Trains step `number`, from 1. Nothing where it must be replayed: `run.steps` then gives the number again.
  std::optional<step_result> train(std::size_t number) {
    step_result result;
    fill_batch(number, result);
    belay::step step{run_->engine(), store_, exchange_, checkpoints_};
    graphs_.run([&] {
      pipeline_.run(step, stages(), batch_of<const std::int32_t>(tokens_.data()),
                    [this](const auto& scope, logits_view logits) { return this->loss_of(scope, logits); });
    });
    fetch_sums();
    auto outcome = std::move(step).commit(mesh_, belay::target_tokens{result.targets});
    auto* const ok = belay::committed(outcome);
    if (ok == nullptr) {
      replays_ += belay::replay(outcome) != nullptr ? 1 : 0;
      return std::nullopt;
    }
    if (hook_ != nullptr) hook_(hook_context_, *this);
    result.grad_norm = ok->norm();
    result.replays = std::exchange(replays_, 0);
    update(std::move(*ok));
    report(result);
    return result;
  }

  [[nodiscard]] const options& settings() const noexcept { return settings_; }
  [[nodiscard]] bool rehearsing() const noexcept { return run_->rehearsing(); }
  [[nodiscard]] Run& run() noexcept { return *run_; }
  [[nodiscard]] const belay::mesh& mesh() const noexcept { return mesh_; }
  [[nodiscard]] exchange_type& exchange() noexcept { return exchange_; }
  [[nodiscard]] model_type& model() noexcept { return model_; }
  [[nodiscard]] store_type& store() noexcept { return store_; }
  /// Of store and optimizer; whoever runs the training adds its own state and opens them.
  [[nodiscard]] auto& checkpoints() noexcept { return checkpoints_; }
  [[nodiscard]] auto& pipeline() noexcept { return pipeline_; }
  [[nodiscard]] const auto& pipeline() const noexcept { return pipeline_; }
  /// This rank's stages, by chunk.
  [[nodiscard]] belay::stages_of_rank<stage_type> stages() const noexcept { return stages_; }
  /// The rank of its pipeline that has the first stage, and the one that has the last.
  [[nodiscard]] int first_rank() const noexcept { return static_cast<int>(schedule_.rank_of(0)); }
  [[nodiscard]] int last_rank() const noexcept { return static_cast<int>(schedule_.rank_of(schedule_.stages() - 1)); }
  /// Of tier file: a disk is as fast with less than a chunk of the optimizer's at once.
  static constexpr std::size_t file_piece = std::size_t{1} << 19;  // bytes
  [[nodiscard]] static belay::file_memory files_of(const options& settings) {
    return {.folder = settings.tier_folder, .piece = std::min(settings.tier_chunk * sizeof(float), file_piece)};
  }
  /// The numbers all ranks shared at the end of the last step; see report_table for their places.
  [[nodiscard]] std::span<const double> shared() const noexcept { return shared_; }
  [[nodiscard]] const report_table& table() const noexcept { return table_; }
  [[nodiscard]] const belay::memory_report& memory() const noexcept { return memory_; }

  /// Called with the reduced, divided gradients before they are applied: for tests that compare them.
  void on_gradients(void (*hook)(void*, trainer&), void* context) noexcept {
    hook_ = hook;
    hook_context_ = context;
  }

 private:
  [[nodiscard]] static belay::expert_settings experts_of(const options& settings) {
    const auto& model = settings.model;
    return {model.experts, model.experts_per_token, model.hidden, initial_capacity(settings)};
  }
  // Before any memory is made by it.
  [[nodiscard]] belay::schedule::dynamic_table schedule_of_all(const options& settings) const {
    if (!run_->rehearsing()) expect_one_schedule(settings, mesh_.control());
    return schedule_of(settings);
  }
  // In its pipeline.
  [[nodiscard]] std::size_t rank_in_pipeline() const { return static_cast<std::size_t>(mesh_.coordinate().pipeline); }
  // This rank's slice of a step: [micro_batches, sequences, length].
  template <class Index>
  [[nodiscard]] belay::view<Index, 3> batch_of(Index* first) const {
    return {first, {shape_.micro_batches, shape_.sequences, shape_.length}};
  }

  // Cross-entropy summed over the targets of a micro-batch, for the report, and its gradient.
  template <class Scope>
  [[nodiscard]] belay::loss_and_gradient<engine_type, logit_type, 3> loss_of(const Scope& scope, logits_view logits) {
    const std::size_t m = scope.micro_batch();
    belay::loss_and_gradient<engine_type, logit_type, 3> out{{}, {scope.engine(), logits.shape()}};
    const belay::kernel::findings_note found = belay::found_by(scope, "cross_entropy", belay::where::current());
    const belay::kernel::cross_entropy_rows<logit_type> rows{logits.data(),
                                                             targets_.data() + m * shape_.rows(),
                                                             nullptr,
                                                             out.gradient.values().data(),
                                                             logits.extent(2),
                                                             loss_scales_[m],
                                                             found};
    using loss_type = belay::kernel::noted_cross_entropy<logit_type>;
    belay::queue_loss(scope.engine(),
                      belay::kernel::kept_loss<loss_type>{{rows, shape_.rows()}, loss_sums_.data() + m});
    return out;
  }

  // Copies what kernels have summed to the host's side, which has it when the step is committed.
  void fetch_sums() {
    loss_sums_.fetch();
    selections_.fetch();
    probability_sums_.fetch();
  }

  // This rank's slice of the global batch: micro-batches are divided over data, their sequences over expert.
  void fill_batch(std::size_t number, step_result& result) {
    std::uint64_t targets[1] = {1};
    tokens_.write([&](std::span<std::int32_t> tokens) {
      targets_.write([&](std::span<std::int32_t> wanted) {
        const auto x = batch_of(tokens.data()), y = batch_of(wanted.data());
        const std::size_t first_batch = static_cast<std::size_t>(mesh_.coordinate().data) * shape_.micro_batches;
        const std::size_t first_sequence = static_cast<std::size_t>(mesh_.coordinate().expert) * shape_.sequences;
        for (std::size_t m = 0; m < shape_.micro_batches; ++m) {
          for (std::size_t s = 0; s < shape_.sequences; ++s)
            source_->sequence(number, first_batch + m, first_sequence + s, x[m][s].flat(), y[m][s].flat());
        }
        targets[0] = 0;
        if (mesh_.coordinate().pipeline == 0)  // the ranks of a pipeline have the same batch
          for (const std::int32_t target : wanted) targets[0] += target == model::ignored ? 0U : 1U;
      });
    });
    mesh_.control().all_reduce(std::span<std::uint64_t>(targets), belay::sum);
    result.targets = targets[0];
    if (settings_.mean == loss_mean::micro_batches && !run_->rehearsing()) weigh_micro_batches(result.targets);
    model_.set_balance_scale(settings_.balance_coefficient * static_cast<double>(result.targets) /
                             static_cast<double>(settings_.micro_batches * settings_.model.layers));
    belay::fnv1a now;
    now.add(result.targets);
    for (const double scale : loss_scales_) now.add(std::bit_cast<std::uint64_t>(scale));
    if (std::exchange(scales_, now.value()) != now.value()) graphs_.drop();  // kernels have them by value
  }

  // Every micro-batch has the same weight, whatever its number of targets.
  void weigh_micro_batches(std::size_t all_targets) {
    for (std::size_t m = 0; m < shape_.micro_batches; ++m) {
      const auto targets = batch_of<const std::int32_t>(targets_.values().data())[m];
      std::uint64_t own[1] = {model::target_count(targets)};
      belay::control_of(mesh_.expert()).all_reduce(std::span<std::uint64_t>(own), belay::sum);
      loss_scales_[m] = static_cast<double>(all_targets) / static_cast<double>(own[0] * settings_.micro_batches);
    }
  }

  template <class Committed>
  void update(Committed&& gradients) {
    belay::span_log* const spans = run_->engine().spans();
    const belay::queued_span traced(
        run_->engine().compute(),
        spans == nullptr
            ? nullptr
            : spans->add({.name = "optimizer", .kind = belay::span_kind::update, .lane = belay::span_lane::compute}));
    optimizer_.apply(std::forward<Committed>(gradients), {.learning_rate = settings_.learning_rate, .clip = 1.0});
  }

  // Fills this rank's entries of the shared table, and sums the tables of all ranks.
  void report(step_result& result) {
    if (run_->rehearsing()) return;
    std::fill(shared_.begin(), shared_.end(), 0.0);
    const auto& place = mesh_.coordinate();
    const std::size_t first_batch = static_cast<std::size_t>(place.data) * shape_.micro_batches;
    if (model_.has_head()) {
      const std::span<const double> sums = loss_sums_.values();
      for (std::size_t m = 0; m < shape_.micro_batches; ++m) shared_[table_.loss(first_batch + m)] = sums[m];
    }
    belay::control_of(mesh_.expert()).all_reduce(statistics_.probability_sums(), belay::sum);
    for (std::size_t l = 0; l < layers_.size() && place.expert == 0; ++l) {
      const std::size_t layer = layers_[l];
      for (std::size_t m = 0; m < shape_.micro_batches; ++m) {
        shared_[table_.balance(layer, first_batch + m)] = statistics_.balance(l, m);
        const std::size_t experts = settings_.model.experts;
        const std::int64_t* selections = &statistics_.selections()[(l * shape_.micro_batches + m) * experts];
        for (std::size_t e = 0; e < experts; ++e)
          shared_[table_.tokens(layer, e)] += static_cast<double>(selections[e]);
      }
    }
    const auto put = [&](report_table::number which, double value) {
      shared_[table_.of_rank(static_cast<std::size_t>(mesh_.control().rank()), which)] = value;
    };
    const belay::gather_counts gathered = store_.take_gathered();
    put(report_table::prefetch_hits, static_cast<double>(gathered.prefetched));
    put(report_table::plan_misses, static_cast<double>(gathered.missed));
    put(report_table::gathered_bytes, static_cast<double>(gathered.peak_bytes));
    put(report_table::offloaded_pinned, offloaded_bytes(belay::tier::pinned));
    put(report_table::offloaded_host, offloaded_bytes(belay::tier::host));
    put(report_table::offloaded_file, offloaded_bytes(belay::tier::file));
    const belay::copy_times now = run_->engine().times_of_copies();
    put(report_table::copied_nanoseconds, static_cast<double>(now.copied - reported_.copied));
    put(report_table::waited_nanoseconds, static_cast<double>(now.waited - reported_.waited));
    reported_ = now;
    const belay::pipeline_times times = pipeline_times();
    put(report_table::bubble, times.known() ? times.bubble() : report_table::unknown);
    report_stages(times.known());
    mesh_.control().all_reduce(shared_, belay::sum);
    memory_.gather(*run_, mesh_);
    summarise(result);
  }

  // How long this rank's stages took for a micro-batch, mean over those of each kind of compute.
  void report_stages(bool known) {
    for (const belay::executed_action& each : pipeline_.executed()) {
      if (each.exchanged) continue;
      const std::size_t at = table_.of_stage(schedule_.stage(rank_in_pipeline(), each.chunk), each.kind);
      const double seconds = 1e-9 * static_cast<double>(each.end - each.begin);
      shared_[at] += known ? seconds / static_cast<double>(computes_[computes_of(each)]) : report_table::unknown;
    }
  }
  [[nodiscard]] static std::size_t computes_of(const belay::executed_action& each) {
    return each.chunk * report_table::kinds + static_cast<std::size_t>(each.kind);
  }

  // Those of a device are known in a traced step, of whose spans it tells the times here.
  [[nodiscard]] belay::pipeline_times pipeline_times() {
    auto& stream = run_->engine().compute();
    if constexpr (belay::device_stream<std::remove_reference_t<decltype(stream)>>) {
      if constexpr (belay::span_timing_stream<std::remove_reference_t<decltype(stream)>>)
        if (belay::span_log* const log = run_->engine().spans(); log != nullptr) stream.trace_into(log);
      pipeline_.take_times_of_device();
    }
    return pipeline_.times();
  }

  // Of what --offload names: what lives in a lower tier by plan, and what activations took there.
  [[nodiscard]] double offloaded_bytes(belay::tier of) const {
    std::size_t all = 0;
    for (const belay::plan_item& item : run_->planned().items())
      for (const char* const purpose : {"parameters", "frozen parameters", "gradients", "optimizer state"})
        if (item.where_it_is == of && item.purpose == purpose) all += item.bytes;
    if (settings_.activation_tier == of) all += activations_.peak_bytes();
    return static_cast<double>(all);
  }

  void summarise(step_result& result) const {
    double loss = 0, aux = 0;
    for (std::size_t m = 0; m < settings_.micro_batches; ++m) loss += shared_[table_.loss(m)];
    for (std::size_t layer = 0; layer < settings_.model.layers; ++layer)
      for (std::size_t m = 0; m < settings_.micro_batches; ++m) aux += shared_[table_.balance(layer, m)];
    result.loss = loss / static_cast<double>(result.targets);
    result.aux_loss = aux / static_cast<double>(settings_.model.layers * settings_.micro_batches);
  }

  options settings_;
  batch_shape shape_;
  Run* run_;
  const batch_source* source_;
  belay::mesh mesh_;
  belay::schedule::dynamic_table schedule_;
  exchange_type exchange_;
  model_type model_;
  store_type store_;
  belay::adamw<T, group_type, typename Run::engine_type::kit_type> optimizer_;
  belay::step_graphs<store_type> graphs_;
  belay::pipeline<logit_type, 3, T> pipeline_;
  activations_type activations_;
  std::deque<network_type> networks_;  // by chunk
  std::deque<stage_type> own_stages_;
  std::vector<stage_type*> stages_;
  std::vector<std::size_t> layers_;  // the numbers of those that are here, in the model
  report_table table_;
  std::vector<std::size_t> computes_;  // of a step, by chunk and kind
  belay::staged<std::int32_t, Run> tokens_, targets_;
  belay::staged<logit_type, Run> positions_;
  belay::staged<double, Run> loss_sums_;  // by micro-batch, where the stage has the head
  belay::staged<std::int64_t, Run> selections_;
  belay::staged<double, Run> probability_sums_;
  belay::expert_statistics statistics_;  // the host's side of both
  std::span<double> shared_;
  belay::memory_report memory_;
  belay::checkpoints<Run> checkpoints_;
  std::vector<double> loss_scales_;
  std::uint64_t scales_ = 0;  // a hash: of the loss and of the balance
  std::size_t replays_ = 0;
  belay::copy_times reported_;  // of copies, at the last report
  void (*hook_)(void*, trainer&) = nullptr;
  void* hook_context_ = nullptr;
};

}  // namespace train_moe
