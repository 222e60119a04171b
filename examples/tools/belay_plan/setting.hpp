// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a model is trained: what the flags say, and the sizes that follow. What cannot work is refused with the flag, and
// with numbers that would.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "belay/comm/mesh.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/device/tier.hpp"
#include "input/problem_text.hpp"
#include "tools/belay_plan/architecture.hpp"
#include "tools/belay_plan/schedules.hpp"

namespace belay_plan {

enum class recompute_kind { none, selective, full };
/// How long parameters that ranks divide are whole: for a call of their layer, or to the end of the step.
enum class gathers_kind { use, step };
inline constexpr recompute_kind all_recomputes[] = {recompute_kind::none, recompute_kind::selective,
                                                    recompute_kind::full};

[[nodiscard]] constexpr const char* name(recompute_kind which) noexcept {
  switch (which) {
    case recompute_kind::none: return "none";
    case recompute_kind::selective: return "selective";
    case recompute_kind::full: return "full";
  }
  return "unknown";
}

[[nodiscard]] constexpr const char* name(gathers_kind which) noexcept {
  return which == gathers_kind::step ? "step" : "use";
}

/// In which tier something lives.
struct tiers {
  belay::tier optimizer = belay::tier::device, parameters = belay::tier::device, gradients = belay::tier::device,
              activations = belay::tier::device;

  [[nodiscard]] bool operator==(const tiers&) const = default;
};
/// As the flag --offload says it: "optimizer:host,activations:pinned"; empty where nothing is offloaded.
[[nodiscard]] inline std::string text_of(const tiers& where) {
  std::string out;
  const auto add = [&out](const char* what, belay::tier in) {
    if (in != belay::tier::device) out += (out.empty() ? "" : ",") + std::string(what) + ":" + belay::name(in);
  };
  add("optimizer", where.optimizer);
  add("parameters", where.parameters);
  add("gradients", where.gradients);
  add("activations", where.activations);
  return out;
}

struct setting {
  belay::axes mesh;
  count global_batch = 32;     // sequences of a step, over all ranks
  count micro_batch_size = 1;  // sequences of a micro-batch, over all expert ranks
  count sequence = 128;        // tokens
  belay::dtype dtype = belay::dtype::bf16;
  int zero = 1;
  gathers_kind gathers = gathers_kind::use;  // of --zero 3
  recompute_kind recompute = recompute_kind::none;
  schedule_word schedule;
  tiers offload;
  double expert_capacity = 2;           // rows a rank can receive over the balanced number
  count whole_below = 0;                // bytes, of --zero 2 and 3; of what is rehearsed alone
  count bucket_bytes = count{1} << 20;  // of gradients that are reduced together, as train_moe has them

  /// Ranks along pp. Each has one stage of the cut, or several.
  [[nodiscard]] count pipeline_ranks() const noexcept { return static_cast<count>(mesh.pipeline); }
  [[nodiscard]] count replicas() const noexcept { return static_cast<count>(mesh.data); }
  [[nodiscard]] count expert_ranks() const noexcept { return static_cast<count>(mesh.expert); }
  [[nodiscard]] count ranks() const noexcept { return pipeline_ranks() * replicas() * expert_ranks(); }
  /// Ranks along dp that divide what the ZeRO stage says, and how many such groups have the same.
  [[nodiscard]] count shards() const noexcept { return static_cast<count>(mesh.shards()); }
  [[nodiscard]] count shard_replicas() const noexcept { return replicas() / shards(); }
  /// Of a step, over all pipelines; and of one pipeline.
  [[nodiscard]] count all_micro_batches() const noexcept { return global_batch / micro_batch_size; }
  [[nodiscard]] count micro_batches() const noexcept { return all_micro_batches() / replicas(); }
  /// Tokens of a micro-batch on one rank.
  [[nodiscard]] count rows() const noexcept { return micro_batch_size / expert_ranks() * sequence; }
  /// Bytes of a parameter, and of an activation.
  [[nodiscard]] count value_bytes() const noexcept { return dtype == belay::dtype::bf16 ? 2 : 4; }
  /// The schedule on the ranks of a pipeline. Settings that were copied from one that has laid it out share it.
  [[nodiscard]] const laid_schedule& laid() const {
    const auto ranks = static_cast<std::size_t>(pipeline_ranks()), size = static_cast<std::size_t>(micro_batches());
    if (!laid_ || !laid_->is(schedule, ranks, size))
      laid_ = std::make_shared<const laid_schedule>(schedule, ranks, size);
    return *laid_;
  }

 private:
  mutable std::shared_ptr<const laid_schedule> laid_;
};

[[nodiscard]] inline std::string mesh_text(const belay::axes& mesh) {
  return "pp=" + std::to_string(mesh.pipeline) + ",dp=" + std::to_string(mesh.data) +
         ",ep=" + std::to_string(mesh.expert);
}

/// The layers of one of `stages` stages, in order and as even as can be: the first stages have one more where that is
/// not even, the last has the head.
struct layer_range {
  count first = 0, size = 0;
};
[[nodiscard]] inline layer_range layers_of_stage(count layers, count stages, count stage) noexcept {
  const count longer = layers % stages;  // stages with one more
  return {stage * (layers / stages) + std::min(stage, longer), layers / stages + (stage < longer ? 1 : 0)};
}

/// "1, 2, 4": divisors of a number, the first of them where they are many.
[[nodiscard]] inline std::string divisors_text(count of) {
  std::string out;
  count found = 0;
  for (count d = 1; d <= of && d <= 65'536; ++d) {
    if (of % d != 0) continue;
    if (++found > 16) return out + ", ...";
    out += (out.empty() ? "" : ", ") + std::to_string(d);
  }
  return out;
}

/// Throws belay::input_error where the schedule cannot be had on a mesh and with batches that are possible.
inline void check_schedule(const setting& run, const architecture& model) {
  using std::to_string;
  const auto refuse = [](const std::string& why) { throw belay::input_error(why); };
  const std::string flag = "--schedule " + run.schedule.name;
  const count ranks = run.pipeline_ranks(), size = run.micro_batches();
  if (const auto& table = run.schedule.table; table && (table->ranks() != ranks || table->micro_batches() != size))
    refuse(flag + " is a table of " + to_string(table->ranks()) + " ranks and " + to_string(table->micro_batches()) +
           " micro-batches, and the pipeline has " + to_string(ranks) + " and " + to_string(size) +
           ": take --mesh pp=" + to_string(table->ranks()) + " and --global-batch " +
           to_string(table->micro_batches() * run.micro_batch_size * run.replicas()));
  const count chunks = run.schedule.chunks(), stages = ranks * chunks;
  if (stages > model.layers) {
    const count fewer = model.layers / chunks, most = model.layers / ranks;
    refuse(flag + " cuts the model into " + to_string(stages) + " stages on pp=" + to_string(ranks) + ", and it has " +
           to_string(model.layers) + " layers, one for each stage at least: take " +
           (fewer > 0 ? "pp=" + to_string(fewer) + " or less, or " : "") + "a schedule of " +
           (most == 1 ? "one chunk a rank: 1f1b, zb-h1" : "at most " + to_string(most) + " chunks a rank"));
  }
  if (const count least = run.schedule.least_micro_batches(ranks); size < least)
    refuse(flag + " needs " + to_string(least) + " micro-batches on pp=" + to_string(ranks) + ", and a pipeline has " +
           to_string(size) + ": take --global-batch " + to_string(least * run.micro_batch_size * run.replicas()));
  try {
    static_cast<void>(run.laid());
  } catch (const belay::usage_error& problem) {
    refuse(flag + ": " + input::problem_words(problem));
  }
}

/// Throws belay::input_error, with the flag and with numbers that would work.
inline void check(const setting& run, const architecture& model) {
  using belay::input_error;
  using std::to_string;
  const belay::axes& mesh = run.mesh;
  const auto refuse = [](const std::string& why) { throw input_error(why); };
  const auto must_divide = [&](count part, const std::string& flag, count whole, const std::string& of) {
    if (part == 0 || whole % part != 0)
      refuse(flag + " does not divide " + of + " (" + to_string(whole) + "); it can be " + divisors_text(whole));
  };
  if (!mesh.valid()) refuse("--mesh needs at least one rank on every axis, got " + mesh.text());
  if (mesh.tensor > 1)
    refuse("--mesh tp=" + to_string(mesh.tensor) +
           ": belay-plan plans no tensor-parallel layers yet; use tp=1 and more pp, dp or ep");
  if (mesh.ranks() > 1'048'576)
    refuse("--mesh asks for " + to_string(mesh.ranks()) + " ranks; at most 1048576 are planned");
  if (run.pipeline_ranks() > model.layers)
    refuse("--mesh pp=" + to_string(mesh.pipeline) + ": the model has " + to_string(model.layers) +
           " layers, and each stage needs one: pp is at most " + to_string(model.layers));
  if (!model.has_experts() && mesh.expert > 1)
    refuse("--mesh ep=" + to_string(mesh.expert) + ": the model has no experts to divide; use ep=1 and more dp");
  if (model.has_experts())
    must_divide(run.expert_ranks(), "--mesh ep=" + to_string(mesh.expert), model.most_experts(), "the model's experts");
  if (mesh.shard_group != 0) {
    const std::string flag = "--shard-group " + to_string(mesh.shard_group);
    must_divide(run.shards(), flag, run.replicas(), "the mesh's dp");
    if (mesh.replicates_shards() && run.zero == 0)
      refuse(flag + " says among how many ranks is divided, and --zero 0 divides nothing: take --zero 1, 2 or 3");
    if (mesh.replicates_shards() && run.shards() == 1 &&
        (run.offload.parameters != belay::tier::device || run.offload.gradients != belay::tier::device))
      refuse("--shard-group 1 has no shards that --offload could move: take a larger group");
    if (mesh.replicates_shards() && run.offload.gradients == belay::tier::file)
      refuse("--shard-group sums gradients over groups, which it does not in tier file: take --offload gradients:host");
  }
  if (run.sequence < 2 || run.sequence > (count{1} << 24U))
    refuse("--sequence is from 2 to 16777216 tokens, got " + to_string(run.sequence));
  if (model.position_parameters > 0 && run.sequence > model.positions)
    refuse("--sequence " + to_string(run.sequence) + ": the model has positions for " + to_string(model.positions) +
           " tokens");
  if (run.global_batch < 1 || run.global_batch > (count{1} << 32U))
    refuse("--global-batch is from 1 to 4294967296 sequences, got " + to_string(run.global_batch));
  must_divide(run.micro_batch_size, "--micro-batch-size " + to_string(run.micro_batch_size), run.global_batch,
              "--global-batch");
  must_divide(run.expert_ranks(), "--mesh ep=" + to_string(mesh.expert), run.micro_batch_size, "--micro-batch-size");
  must_divide(run.replicas(), "--mesh dp=" + to_string(mesh.data), run.all_micro_batches(),
              "the micro-batches of a step, --global-batch / --micro-batch-size");
  if (!belay::is_finite(run.expert_capacity) || run.expert_capacity < 1 || run.expert_capacity > 1e6)
    refuse("--expert-capacity is a factor over the balanced number of rows: from 1 to 1000000");
  if (run.offload.parameters != belay::tier::device && run.zero < 3)
    refuse("--offload parameters: shards of parameters are what --zero 3 has: take --zero 3");
  if (run.offload.gradients != belay::tier::device && run.zero < 2)
    refuse("--offload gradients: shards of gradients are what --zero 2 and 3 have: take one of these");
  if (!run.schedule.is_chosen()) check_schedule(run, model);
}

/// The global batch where none is given: 32 sequences, or two a rank where that is more, as many as the mesh divides.
[[nodiscard]] inline count default_global_batch(const setting& run) noexcept {
  const count wanted = std::max<count>(32, 2 * run.ranks());
  const count unit = run.micro_batch_size * run.replicas();
  return (wanted + unit - 1) / unit * unit;
}

}  // namespace belay_plan
