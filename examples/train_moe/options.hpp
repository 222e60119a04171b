// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The options of one run as plain data, and the sizes that follow from them. Options that cannot work are refused here,
// with numbers that would, before anything is allocated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/comm/mesh.hpp"
#include "belay/core/dtype.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/parallel/bucket/layout.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/step_graphs.hpp"
#include "model/mixtral.hpp"
#include "train_moe/phase_cycle.hpp"

namespace train_moe {

enum class recompute_kind { none, selective, full };
/// `parts`: attention, experts and embedding.
enum class freeze_kind { none, attention, experts, parts };
inline constexpr freeze_kind all_freeze_kinds[] = {freeze_kind::none, freeze_kind::attention, freeze_kind::experts,
                                                   freeze_kind::parts};
/// The objective: the mean over all targets of the global batch, or the mean of the micro-batches' means. They differ
/// where micro-batches have different numbers of targets; there is a flag for the first only.
enum class loss_mean { targets, micro_batches };

/// Where a run saves its state, and what it begins with.
struct checkpoint_settings {
  std::string folder;     // empty: none
  std::size_t every = 0;  // steps; 0: when the run is asked to stop
  std::size_t keep = 0;   // of the newest; 0: all
  belay::resume_from from = belay::resume_from::nothing;
  const belay::stop_request* stop = nullptr;
};

struct options {
  belay::axes mesh{.pipeline = 2, .data = 1, .expert = 2, .tensor = 1};
  std::string schedule = "1f1b";          // a name of belay::schedule, or a file of CSV
  std::string schedule_text;              // of that file
  std::vector<std::size_t> stage_layers;  // of each stage; empty: as even as can be
  bool overlap_pairs = false;             // a forward computes while a backward's rows are on their way to experts
  std::size_t micro_batches = 8;     // a step, over all data ranks
  std::size_t micro_batch_size = 4;  // sequences, over all expert ranks
  std::size_t sequence = 128;        // bytes
  double expert_capacity = 2;        // rows a rank can receive over the balanced number
  std::size_t steps = 160;
  std::uint64_t seed = 1;
  double learning_rate = 1e-3;
  belay::zero_stage zero = belay::zero_stage::optimizer_state;
  belay::reshard_when reshard = belay::reshard_when::after_use;
  std::size_t whole_below = 0;  // bytes
  recompute_kind recompute = recompute_kind::none;
  freeze_kind freeze = freeze_kind::none;  // what is never trained
  belay::dtype dtype = belay::dtype::f32;  // of parameters, activations and wire: f32 or bf16
  loss_mean mean = loss_mean::targets;
  phase_cycle cycle;
  belay::budget budget;
  model::mixtral_config model;
  double balance_coefficient = 0.01;  // router_aux_loss_coef
  std::size_t bucket_bytes = std::size_t{1} << 20;
  belay::stream_choice streams;
  belay::graph_use graphs = belay::graph_use::none;
  checkpoint_settings checkpoint;
  belay::tier optimizer_tier = belay::tier::device;   // where the optimizer's state lives
  belay::tier activation_tier = belay::tier::device;  // where what layers keep is between forward and backward
  belay::tier phase_tier = belay::tier::device;       // where gradients and optimizer state are while nothing trains
  belay::tier parameter_tier = belay::tier::device;   // where shards of parameters do,
  belay::tier gradient_tier = belay::tier::device;    // and those of gradients
  std::string tier_folder;                            // of tier file
  std::size_t tier_chunk = std::size_t{1} << 18;      // elements of state that stream as one; there is no flag
};

/// Floating-point operations of the model for a token that is trained, as A. Chowdhery et al. count them (PaLM,
/// appendix B): 6 for each parameter that the token is multiplied with, 4 where it is frozen, and 12 for each layer,
/// column of the heads and position. What is recomputed does not count.
[[nodiscard]] double model_flops_per_token(const options& run);

/// As the flag --freeze names it.
[[nodiscard]] constexpr const char* name(freeze_kind which) noexcept {
  switch (which) {
    case freeze_kind::none: return "none";
    case freeze_kind::attention: return "attention";
    case freeze_kind::experts: return "experts";
    case freeze_kind::parts: return "attention,experts,embedding";
  }
  return "unknown";
}
/// The parts that `--freeze text` names, in any order. Throws input_error with the list of what there is.
[[nodiscard]] freeze_kind freeze_of(const std::string& text);

/// The parts that --offload names, and where each lives.
struct offloadable {
  const char* name;
  belay::tier options::*where_it_is;
};
inline constexpr offloadable all_offloadable[] = {{"optimizer", &options::optimizer_tier},
                                                  {"parameters", &options::parameter_tier},
                                                  {"gradients", &options::gradient_tier},
                                                  {"activations", &options::activation_tier}};
/// As the flag --offload says it: "optimizer:host,activations:pinned"; empty where nothing is offloaded.
[[nodiscard]] inline std::string offload_text(const options& run) {
  std::string out;
  for (const offloadable& each : all_offloadable)
    if (run.*each.where_it_is != belay::tier::device)
      out += (out.empty() ? "" : ",") + std::string(each.name) + ":" + belay::name(run.*each.where_it_is);
  return out;
}

/// As the flag --streams says it: "queued", "adversarial:7".
[[nodiscard]] inline std::string streams_text(const belay::stream_choice& chosen) {
  const bool seeded = chosen.policy == belay::stream_policy::adversarial;
  return belay::name(chosen.policy) + (seeded ? ":" + std::to_string(chosen.seed) : std::string());
}

/// Whether something lies in tier file.
[[nodiscard]] inline bool uses_files(const options& run) noexcept {
  bool any = run.phase_tier == belay::tier::file;
  for (const offloadable& each : all_offloadable) any = any || run.*each.where_it_is == belay::tier::file;
  return any;
}

/// Sizes that follow from the options: of one rank unless said otherwise.
struct batch_shape {
  std::size_t micro_batches = 0;  // of this rank's pipeline
  std::size_t sequences = 0;      // of one micro-batch
  std::size_t length = 0;         // tokens of a sequence

  explicit batch_shape(const options& run)
      : micro_batches(run.micro_batches / static_cast<std::size_t>(run.mesh.data)),
        sequences(run.micro_batch_size / static_cast<std::size_t>(run.mesh.expert)),
        length(run.sequence) {}

  [[nodiscard]] std::size_t rows() const noexcept { return sequences * length; }
};

/// Tokens of one step, over all ranks.
[[nodiscard]] inline std::size_t tokens_per_step(const options& run) {
  return run.micro_batches * run.micro_batch_size * run.sequence;
}

/// Rows a rank receives in one dispatch when all experts are chosen equally often.
[[nodiscard]] inline std::size_t balanced_rows(const options& run) {
  const auto ranks = static_cast<std::size_t>(run.mesh.expert);
  return (run.micro_batch_size * run.sequence * run.model.experts_per_token + ranks - 1) / ranks;
}

/// Rows a rank receives at the very most: every token chooses as many of its experts as it can.
[[nodiscard]] inline std::size_t most_rows(const options& run) {
  const std::size_t local = run.model.experts / static_cast<std::size_t>(run.mesh.expert);
  const std::size_t choices = run.model.experts_per_token < local ? run.model.experts_per_token : local;
  return run.micro_batch_size * run.sequence * choices;
}

/// Rows that a rank has room for at the start.
[[nodiscard]] inline std::size_t initial_capacity(const options& run) {
  const double wanted = static_cast<double>(balanced_rows(run)) * run.expert_capacity;
  const std::size_t most = most_rows(run);
  const std::size_t least = balanced_rows(run) < most ? balanced_rows(run) : most;
  if (wanted >= static_cast<double>(most)) return most;
  const auto rows = static_cast<std::size_t>(wanted);
  return rows < least ? least : rows;
}

/// Throws belay::input_error for options that cannot work, with the flag and numbers that would.
void check(const options& run);

}  // namespace train_moe
