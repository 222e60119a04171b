// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/options.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

namespace {

using belay::input_error;

// "1, 2, 4": the divisors of a number.
std::string divisors(std::size_t of) {
  std::string out;
  for (std::size_t d = 1; d <= of; ++d) {
    if (of % d == 0) out += (out.empty() ? "" : ", ") + std::to_string(d);
  }
  return out;
}

void must_divide(int axis_ranks, const char* axis, std::size_t whole, const char* what) {
  if (axis_ranks > 0 && whole % static_cast<std::size_t>(axis_ranks) == 0) return;
  throw input_error(std::string("--mesh ") + axis + "=" + std::to_string(axis_ranks) + " does not divide " + what +
                    " (" + std::to_string(whole) + "); " + axis + " can be " + divisors(whole));
}

void from_one_to(std::size_t most, std::size_t value, const char* flag, const options& run) {
  if (value == 0) throw input_error(std::string(flag) + " must be at least 1");
  if (value <= most) return;
  const belay::checked_size tokens = belay::checked_size(run.micro_batches) * run.micro_batch_size * run.sequence;
  const belay::checked_size bytes = tokens * (2 * sizeof(std::int32_t));  // and their targets
  throw input_error(std::string(flag) + " " + std::to_string(value) + ": the tokens of one step alone would need " +
                    (bytes.fits() ? "" : "more than ") +
                    std::to_string(bytes.fits() ? bytes.saturated() : belay::largest_size) + " bytes; it is at most " +
                    std::to_string(most));
}

}  // namespace

void check(const options& run) {
  const belay::axes& mesh = run.mesh;
  if (!mesh.valid()) throw input_error("--mesh needs at least one rank on every axis, got " + mesh.text());
  if (mesh.tensor > 1) {
    throw input_error("--mesh tp=" + std::to_string(mesh.tensor) +
                      ": train_moe has no tensor-parallel layers; use tp=1 and more pp, dp or ep");
  }
  if (mesh.ranks() > 1024)
    throw input_error("--mesh asks for " + std::to_string(mesh.ranks()) +
                      " ranks; this host backend takes at most 1024");
  from_one_to(65536, run.micro_batches, "--micro-batches", run);
  from_one_to(65536, run.micro_batch_size, "--micro-batch-size", run);
  if (run.sequence < 2)
    throw input_error("--sequence must be at least 2 bytes: a sequence predicts from its first byte on");
  from_one_to(std::size_t{1} << 20, run.sequence, "--sequence", run);
  must_divide(mesh.expert, "ep", run.model.experts, "the model's experts");
  must_divide(mesh.data, "dp", run.micro_batches, "--micro-batches");
  must_divide(mesh.expert, "ep", run.micro_batch_size, "--micro-batch-size");
  static_cast<void>(layers_of_stages(run, schedule_of(run).stages()));
  if (mesh.shard_group < 0 || mesh.data % mesh.shards() != 0)
    throw input_error("--shard-group " + std::to_string(mesh.shard_group) + " does not divide the mesh's dp=" +
                      std::to_string(mesh.data) + "; it can be " + divisors(static_cast<std::size_t>(mesh.data)));
  if (mesh.replicates_shards() && run.zero == belay::zero_stage::none)
    throw input_error("--shard-group " + std::to_string(mesh.shard_group) +
                      " says among how many ranks is divided, and --zero 0 divides nothing: take --zero 1, 2 or 3");
  if (!belay::is_finite(run.expert_capacity) || run.expert_capacity < 1 || run.expert_capacity > 1e6) {
    throw input_error("--expert-capacity is a factor over the balanced number of rows: from 1 to 1000000");
  }
  if (run.dtype != belay::dtype::f32 && run.dtype != belay::dtype::bf16)
    throw input_error(std::string("--dtype is fp32 or bf16, not ") + belay::name(run.dtype));
  if (run.freeze != freeze_kind::none && run.dtype != belay::dtype::f32)
    throw input_error(std::string("--freeze ") + name(run.freeze) +
                      " is compiled for --dtype fp32 alone: in bf16 the trainer trains all parts");
  if (run.whole_below > 0 && run.zero < belay::zero_stage::gradients)
    throw input_error("--whole-below says what --zero 2 and 3 do not divide: take one of these");
  if (run.reshard == belay::reshard_when::after_step && run.zero != belay::zero_stage::parameters)
    throw input_error("--gathers step says how long --zero 3 keeps what it gathers: take --zero 3");
  if (run.phase_tier != belay::tier::device && run.cycle.entries().size() < 2)
    throw input_error(std::string("--phase-tier ") + belay::name(run.phase_tier) +
                      " says where gradients and optimizer state are in eval and rollout: --phases names none of them");
  if (run.parameter_tier != belay::tier::device && run.zero != belay::zero_stage::parameters)
    throw input_error("--offload parameters: shards of parameters are what --zero 3 has: take --zero 3");
  if (run.gradient_tier != belay::tier::device && run.zero < belay::zero_stage::gradients)
    throw input_error("--offload gradients: shards of gradients are what --zero 2 and 3 have: take one of these");
  if (mesh.replicates_shards() && mesh.shards() == 1 &&
      (run.parameter_tier != belay::tier::device || run.gradient_tier != belay::tier::device))
    throw input_error("--shard-group 1 has no shards that --offload could move: take a larger group");
  if (mesh.replicates_shards() && run.gradient_tier == belay::tier::file)
    throw input_error(
        "--shard-group sums gradients over groups, which it does not in tier file: take --offload gradients:host");
  if (uses_files(run) == run.tier_folder.empty())
    throw input_error(
        "--offload with :file, as in optimizer:file, or --phase-tier file, and --tier-dir DIR, the folder of their "
        "files, go together");
  const checkpoint_settings& saved = run.checkpoint;
  if (saved.folder.empty() && (saved.every > 0 || saved.keep > 0 || saved.from != belay::resume_from::nothing))
    throw input_error(
        "--checkpoint-every, --keep and --resume say what is done with the folder of --checkpoint DIR: name that too");
  if (!belay::is_finite(run.learning_rate) || run.learning_rate < 0)
    throw input_error("--lr must be a finite number >= 0");
}

freeze_kind freeze_of(const std::string& text) {
  const auto parts_of = [](std::string_view list) {  // in whatever order
    std::vector<std::string_view> out;
    for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
      end = list.find(',', begin);
      out.push_back(list.substr(begin, end - begin));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  for (const freeze_kind each : all_freeze_kinds)
    if (parts_of(text) == parts_of(name(each))) return each;
  throw input_error("--freeze is one of none; attention; experts; attention,experts,embedding; got '" + text + "'");
}

double model_flops_per_token(const options& run) {
  const model::mixtral_config& m = run.model;
  const auto product = [](std::size_t a, std::size_t b) { return static_cast<double>(a) * static_cast<double>(b); };
  const double heads = product(m.heads, m.head_dim);
  const double attention = static_cast<double>(m.hidden) * (2 * heads + 2 * product(m.kv_heads, m.head_dim));
  const double experts = static_cast<double>(m.experts_per_token) * 3 * product(m.hidden, m.expert_width);
  const bool frozen = run.freeze == freeze_kind::parts;
  const double of_layer = (frozen || run.freeze == freeze_kind::attention ? 4 : 6) * attention +
                          (frozen || run.freeze == freeze_kind::experts ? 4 : 6) * experts +
                          6 * product(m.hidden, m.experts) + 12 * heads * static_cast<double>(run.sequence);
  return static_cast<double>(m.layers) * of_layer + 6 * product(m.hidden, m.vocab);
}

}  // namespace train_moe
