// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/advice.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/train/plan_table.hpp"
#include "train_moe/command_line.hpp"
#include "train_moe/missing_trainer.hpp"
#include "train_moe/offload_proposal.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

namespace {

class change_list {
 public:
  explicit change_list(const options& run) : run_(&run) {}

  template <class Change>
  void add(std::string flag, std::string effect, Change change) {
    all_.push_back({std::move(flag), std::move(effect), *run_});
    change(all_.back().changed);
  }
  [[nodiscard]] std::vector<flag_change> take() { return std::move(all_); }

 private:
  const options* run_;
  std::vector<flag_change> all_;
};

// What is divided among ranks, and for how long it is whole.
void add_sharding(change_list& out, const options& run) {
  using belay::zero_stage;
  const auto stage = [&](zero_stage wanted, const char* flag, const char* effect) {
    if (run.zero < wanted) out.add(flag, effect, [=](options& one) { one.zero = wanted; });
  };
  if (run.zero == zero_stage::parameters && run.reshard == belay::reshard_when::after_step)
    out.add("--gathers use", "a layer's parameters are whole while it runs only",
            [](options& one) { one.reshard = belay::reshard_when::after_use; });
  if (run.mesh.data * run.mesh.expert > 1) {
    stage(zero_stage::optimizer_state, "--zero 1", "the optimizer's state is divided");
    stage(zero_stage::gradients, "--zero 2", "gradients are divided too");
    stage(zero_stage::parameters, "--zero 3", "parameters are divided too");
  }
  if (run.mesh.replicates_shards())
    out.add("--shard-group 0", "what is divided is divided over all of dp",
            [](options& one) { one.mesh.shard_group = 0; });
  if (run.whole_below > 0)
    out.add("--whole-below 0", "small parameters are divided too", [](options& one) { one.whole_below = 0; });
}

// Whether a rank has all of them between forward and backward at a time.
bool keeps_all_micro_batches(const options& run) {
  const belay::schedule::dynamic_table table = schedule_of(run);
  return belay::proof(table).peak == table.micro_batches() * table.chunks();
}

void add_activations(change_list& out, const options& run) {
  if (run.overlap_pairs)
    out.add("--overlap-pairs off", "a micro-batch ends before the next one begins",
            [](options& one) { one.overlap_pairs = false; });
  if (run.mesh.pipeline > 1 && keeps_all_micro_batches(run))
    out.add("--schedule 1f1b", "fewer micro-batches are in flight",
            [](options& one) { one.schedule = "1f1b", one.schedule_text = {}, one.stage_layers = {}; });
  if (run.recompute == recompute_kind::none)
    out.add("--recompute selective", "of the attention, activations keep only its output",
            [](options& one) { one.recompute = recompute_kind::selective; });
  if (run.recompute != recompute_kind::full)
    out.add("--recompute full", "activations keep only the layers' outputs",
            [](options& one) { one.recompute = recompute_kind::full; });
}

void add_offload(change_list& out, const options& run) {
  const auto to_host = [&](const char* name, belay::tier options::* where_it_is, const char* effect) {
    if (run.*where_it_is == belay::tier::device)
      out.add(std::string("--offload ") + name, effect, [=](options& one) { one.*where_it_is = belay::tier::host; });
  };
  to_host("optimizer", &options::optimizer_tier, "its state lives in the host tier, and is updated there");
  if (run.zero == belay::zero_stage::parameters)
    to_host("parameters", &options::parameter_tier, "shards of parameters live in the host tier");
  if (run.zero >= belay::zero_stage::gradients)
    to_host("gradients", &options::gradient_tier, "shards of gradients live in the host tier");
  to_host("activations", &options::activation_tier,
          "what layers keep is in the host tier between forward and backward");
}

// What changes the numbers of a run, or its ranks.
void add_other_runs(change_list& out, const options& run) {
  if (run.expert_capacity > 1)
    out.add("--expert-capacity 1",
            "smaller expert windows, until a step that overflows them is replayed with larger ones",
            [](options& one) { one.expert_capacity = 1; });
  const auto ranks = static_cast<std::size_t>(run.mesh.expert);
  if (run.micro_batch_size > ranks)
    out.add("--micro-batch-size " + std::to_string(ranks), "smaller activations; with more --micro-batches",
            [=](options& one) {
              one.micro_batches *= one.micro_batch_size / ranks;
              one.micro_batch_size = ranks;
            });
  if (run.dtype == belay::dtype::f32)
    out.add("--dtype bf16", "parameters and activations take half",
            [](options& one) { one.dtype = belay::dtype::bf16; });
  for (const freeze_kind each : all_freeze_kinds)
    if (run.freeze == freeze_kind::none && each != freeze_kind::none)
      out.add(std::string("--freeze ") + name(each), "what is never trained has no gradient and no optimizer state",
              [=](options& one) { one.freeze = each; });
  for (int belay::axes::* const axis : {&belay::axes::pipeline, &belay::axes::expert, &belay::axes::data}) {
    belay::axes mesh = run.mesh;
    mesh.*axis *= 2;
    out.add("--mesh " + mesh_text(mesh), "more ranks, of which each holds less",
            [=](options& one) { one.mesh = mesh; });
  }
  if (run.zero == belay::zero_stage::parameters && run.reshard == belay::reshard_when::after_use)
    out.add("--gathers step", "a layer's parameters are gathered once, and whole until the step ends",
            [](options& one) { one.reshard = belay::reshard_when::after_step; });
}

std::string with_offload(const options& run) {
  const std::string text = offload_text(run);
  return text.empty() ? "no --offload" : "--offload " + text;
}

// Of a lower tier: what lies there may lie elsewhere.
void add_other_tiers(change_list& out, belay::tier of, const options& run) {
  using belay::tier;
  for (const offloadable& each : all_offloadable) {
    if (run.*each.where_it_is != of) continue;
    for (const tier other : {tier::pinned, tier::host, tier::file, tier::device}) {
      if (other == of || (other == tier::file && run.tier_folder.empty())) continue;
      const auto move = [&each, other](options& one) {
        one.*each.where_it_is = other;
        if (!uses_files(one)) one.tier_folder.clear();
      };
      options moved = run;
      move(moved);
      out.add(with_offload(moved), std::string("in tier ") + belay::name(other) + " instead", move);
    }
  }
  if (run.phase_tier == of)
    out.add("no --phase-tier", "what training alone needs stays in the device", [](options& one) {
      one.phase_tier = tier::device;
      if (!uses_files(one)) one.tier_folder.clear();
    });
  if (of != tier::host) return;
  const auto half = [&](const char* flag, std::size_t options::* size) {
    if (run.*size < 4 || run.*size % 2 != 0) return;
    out.add(flag + std::to_string(run.*size / 2), "the host tier holds the step's batch", [=](options& one) {
      one.*size /= 2;
      one.model.positions = one.sequence;
    });
  };
  half("--micro-batches ", &options::micro_batches);
  half("--micro-batch-size ", &options::micro_batch_size);
  half("--sequence ", &options::sequence);
}

std::size_t largest_rank(const belay::plan& planned, belay::tier of) {
  std::size_t most = 0;
  for (const belay::rank_plan& rank : planned.ranks()) most = std::max(most, rank.peak_bytes(of));
  return most;
}

// A change that was rehearsed, where it can be made.
struct rehearsed_change {
  std::size_t bytes = 0;
  std::optional<belay::plan_shortage> missing;
  bool has_trainer = true;  // else nothing was rehearsed
};
std::optional<rehearsed_change> rehearsed(const flag_change& one, belay::tier of, const plan_with& rehearse) {
  try {
    check(one.changed);
    const belay::rehearsal_result found = rehearse(one.changed);
    return rehearsed_change{largest_rank(found.plan, of), found.plan.shortage(one.changed.budget)};
  } catch (const missing_trainer&) {
    return rehearsed_change{0, std::nullopt, false};
  } catch (const belay::error&) {  // it does not go with the other flags
    return std::nullopt;
  }
}

}  // namespace

std::vector<flag_change> changes_for(belay::tier of, const options& run) {
  change_list out(run);
  if (of != belay::tier::device) {
    add_other_tiers(out, of, run);
    return out.take();
  }
  add_sharding(out, run);
  add_activations(out, run);
  add_offload(out, run);
  add_other_runs(out, run);
  return out.take();
}

std::vector<std::string> advice(belay::tier of, const options& run) {
  std::vector<std::string> out;
  for (const flag_change& one : changes_for(of, run)) out.push_back(one.flag + ": " + one.effect);
  return out;
}

std::vector<std::string> rehearsed_advice(belay::tier of, const options& run, const belay::plan& planned,
                                          const plan_with& rehearse) {
  std::vector<std::string> fitting;
  std::vector<std::pair<std::size_t, std::string>> others;  // by bytes
  std::vector<std::string> unknown;
  for (const flag_change& one : changes_for(of, run)) {
    const auto found = rehearsed(one, of, rehearse);
    if (!found) continue;
    const std::string line = one.flag + ": " + one.effect + "; ";
    const bool is_less = found->bytes < largest_rank(planned, of);
    if (!found->has_trainer)
      unknown.push_back(line + "not rehearsed: this program was built without its trainer");
    else if (!found->missing)
      fitting.push_back(line + "fits, with " + exact_bytes(found->bytes));
    else if (is_less && found->missing->where_it_is != of)
      others.emplace_back(found->bytes, line + "needs " + exact_bytes(found->bytes) + ", but " +
                                            exact_bytes(found->missing->needed_bytes) + " in tier " +
                                            belay::name(found->missing->where_it_is));
    else if (is_less)
      others.emplace_back(found->bytes, line + "needs " + exact_bytes(found->bytes));
    else if (run.reshard != one.changed.reshard)
      others.emplace_back(found->bytes, line + "needs " + exact_bytes(found->bytes) + ", no less");
  }
  std::ranges::stable_sort(others, {}, [](const auto& one) { return one.first; });
  std::vector<std::string> out = std::move(fitting);
  if (out.empty() && !others.empty()) out.emplace_back("none of these fits alone; the first needs least");
  for (auto& [bytes, line] : others) out.push_back(std::move(line));
  for (std::string& line : unknown) out.push_back(std::move(line));
  return out;
}

}  // namespace train_moe
