// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "input/problem_text.hpp"
#include "tools/belay_plan/flags.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/core/finite.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/proof.hpp"
#include "belay/parallel/schedule.hpp"
#include "input/flag_values.hpp"
#include "input/regular_file.hpp"
#include "tools/belay_plan/config.hpp"
#include "train_moe/command_line.hpp"

namespace belay_plan {

namespace {

using belay::input_error;

constexpr const char* schedule_words =
    "gpipe|1f1b|interleaved:V[:G]|bfs:V|interleaved-zb:V|"
    "zb-h1|zb-h2|zb-v|v-half|v-min|dualpipe-v[:atomic]|greedy|auto|FILE.csv";
// Bytes of a table that is read.
constexpr std::uint64_t largest_table = std::uint64_t{1} << 26U;

schedule_word schedule_of(const std::string& text) {
  namespace schedule = belay::schedule;
  if (text == "auto" || text == "greedy") return {text, nullptr};
  const std::string flag = "--schedule " + text + ": ";
  if (text.ends_with(".csv")) {
    const std::string content = input::content_of(text, largest_table);
    try {
      auto table = std::make_shared<const schedule::dynamic_table>(schedule::from_csv(content, belay::where{}));
      const auto proven = belay::proof(*table);
      if (!proven.valid()) throw input_error("this schedule cannot run: " + belay::explain(proven.reason));
      return {text, std::move(table)};
    } catch (const belay::error& problem) {
      throw input_error(flag + input::problem_words(problem));
    }
  }
  try {
    static_cast<void>(schedule::named_schedule::of(text, belay::where{}));
  } catch (const input_error&) {
    throw input_error(flag + "is no schedule; it is one of " + schedule_words + ", with V chunks a rank");
  }
  return {text, nullptr};
}

recompute_kind recompute_of(const std::string& text) {
  for (const recompute_kind each : all_recomputes)
    if (text == name(each)) return each;
  return recompute_kind::none;
}

// A time that follows from it is a number, and so are the tokens a second.
double usable(double value, const std::string& given, double least, double most, const char* range) {
  if (belay::is_finite(value) && value >= least && value <= most) return value;
  throw input_error(given + " is no constant that a time can be predicted with: it can be " + range);
}

tiers parse_offload(const std::string& text, const std::string& otherwise) {
  train_moe::options parsed;
  train_moe::parse_offload(text, otherwise, parsed);
  return {parsed.optimizer_tier, parsed.parameter_tier, parsed.gradient_tier, parsed.activation_tier};
}

}  // namespace

std::optional<question> parse(int argc, char** argv, int& exit_code) {
  question out;
  std::string mesh, dtype = "bf16", zero = "1", gathers = "use", recompute = "none", schedule = "1f1b", offload,
                    offload_tier = "host";
  std::string fit, budget, alpha, beta, flops;
  std::size_t sequence = 0, micro_batch_size = 0, global_batch = 0, ranks = 0;
  bool json = false;

  CLI::App app{
      "Plans the memory of a training run: bytes of every class of ranks, by tier and purpose, and the "
      "schedule's bubble; or searches what fits.",
      "belay-plan"};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("model", out.model, "a preset (" + presets_text() + "), or a Hugging Face config.json")
      ->type_name("CONFIG")
      ->required();
  app.add_option("--mesh", mesh, "ranks on each axis: pp, dp, ep; an omitted one is 1, dp what --ranks leave for it")
      ->type_name("AXES");
  app.add_option("--ranks", ranks, "ranks of the run; with --fit those that are searched")
      ->check(input::count_of("ranks", 1, 1'048'576));
  app.add_option("--global-batch", global_batch, "sequences of a step; 0: 32, or two a rank")
      ->check(input::count_of("sequences", 0, std::size_t{1} << 32U));
  app.add_option("--micro-batch-size", micro_batch_size, "sequences of a micro-batch, over all ep ranks; 0: one a rank")
      ->check(input::count_of("sequences", 0, std::size_t{1} << 32U));
  app.add_option("--sequence", sequence, "tokens of a sequence; 0: 4096, or what the model has positions for")
      ->check(input::count_of("tokens", 0, std::size_t{1} << 24U));
  app.add_option("--dtype", dtype, "of parameters and activations")->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--zero", zero, "what ranks divide: 1: optimizer state; 2: gradients too; 3: parameters too")
      ->check(CLI::IsMember({"0", "1", "2", "3"}));
  app.add_option("--gathers", gathers,
                 "--zero 3: a layer's parameters are whole for a call of it, or to the step's end")
      ->check(CLI::IsMember({"use", "step"}));
  app.add_option("--shard-group", out.shard_group,
                 "neighbours along dp that divide what --zero says, replicated over dp/N such groups; 0: all of dp")
      ->check(input::count_of("ranks", 0, 1'048'576));
  app.add_option("--whole-below", out.whole_below,
                 "--zero 2 and 3: bytes; smaller parameters are not divided. Of models that train_moe trains")
      ->check(input::count_of("bytes", 0, std::size_t{1} << 40U));
  app.add_option("--recompute", recompute, "what the backward runs again")
      ->check(CLI::IsMember({"none", "selective", "full"}));
  app.add_option("--schedule", schedule,
                 "order of the micro-batches over the pipeline; greedy makes one by the predicted times within the "
                 "budget, auto chooses what is shortest")
      ->type_name(std::string(schedule_words));
  app.add_option("--offload", offload, "what lives in a lower tier")
      ->type_name("optimizer[:TIER],parameters[:TIER],gradients[:TIER],activations[:TIER]");
  app.add_option("--tier", offload_tier, "the tier of an --offload that names none, and of what --fit offloads")
      ->check(CLI::IsMember({"pinned", "host", "file"}));
  app.add_option("--expert-capacity", out.run.expert_capacity, "rows a rank can receive, over the balanced number")
      ->type_name("FACTOR");
  app.add_option("--budget", budget, "bytes one rank may use in a tier: a plan beyond it ends with exit code 3")
      ->type_name("device=BYTES,pinned=BYTES,host=BYTES,file=BYTES");
  app.add_option("--fit", fit,
                 "searches meshes, micro-batches, --zero, --recompute, --schedule and --offload for what fits this "
                 "budget, fastest first; exit code 3 where nothing does")
      ->type_name("device=BYTES,...");
  app.add_option("--top", out.top, "answers that --fit shows")->check(input::count_of("answers", 1, 100));
  app.add_option("--alpha", alpha, "of the predicted time: a message costs so long (default: 10us)")->type_name("TIME");
  app.add_option("--beta", beta,
                 "and so many bytes a second move to or from a rank, over links and between tiers "
                 "(default: 50GB/s)")
      ->type_name("BYTES/s");
  app.add_option("--flops", flops, "and a rank computes so fast (default: 400TFLOPS)")->type_name("FLOPS");
  app.add_flag("--json", json, "the same for programs");
  app.add_option("--svg", out.svg, "draw the plan, or the first answer, into this file")
      ->type_name("FILE")
      ->check(input::a_name());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  out.format = json ? question::output::json : question::output::text;
  const auto given = [](std::size_t value) { return value == 0 ? std::nullopt : std::optional<std::size_t>(value); };
  out.sequence = given(sequence);
  out.micro_batch_size = given(micro_batch_size);
  out.global_batch = given(global_batch);
  out.ranks = given(ranks);
  if (app.count("--mesh") > 0) {
    out.mesh = train_moe::parse_mesh(mesh);
    if (out.ranks && mesh.find("dp=") == std::string::npos) out.mesh->data = 0;  // what they leave for it
  }
  out.run.dtype = dtype == "bf16" ? belay::dtype::bf16 : belay::dtype::f32;
  out.run.zero = zero.front() - '0';
  out.run.gathers = gathers == "step" ? gathers_kind::step : gathers_kind::use;
  out.run.recompute = recompute_of(recompute);
  out.run.schedule = schedule_of(schedule);
  if (app.count("--offload") > 0) out.run.offload = parse_offload(offload, offload_tier);
  if (app.count("--budget") > 0) out.limit = train_moe::parse_budget(budget);
  if (app.count("--fit") > 0) {
    out.what = question::question_kind::fit;
    out.limit = train_moe::parse_budget(fit, "--fit");
    out.lower = parse_offload("optimizer", offload_tier).optimizer;
    for (const char* const one :
         {"--mesh", "--budget", "--micro-batch-size", "--zero", "--recompute", "--schedule", "--offload"})
      if (app.count(one) > 0)
        throw input_error(std::string(one) + " is what --fit searches: leave it out, or plan with it without --fit");
    if (out.shard_group != 0)
      throw input_error("--fit searches meshes whose ZeRO groups are all of dp: try --shard-group on an answer of it");
    if (out.whole_below != 0)
      throw input_error("--fit searches with parameters that are all divided: try --whole-below on an answer of it");
    if (!out.ranks) throw input_error("--fit searches settings of so many ranks as --ranks says: name them");
  } else if (app.count("--top") > 0) {
    throw input_error("--top says how many answers --fit shows: a plan has one");
  }
  if (app.count("--tier") > 0 && app.count("--offload") == 0 && app.count("--fit") == 0)
    throw input_error("--tier " + offload_tier + " is the tier of an --offload that names none: say what is offloaded");
  if (!alpha.empty())
    out.constants.alpha =
        usable(input::measured(alpha, "--alpha", {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}}, "10us"),
               "--alpha " + alpha, 1e-15, 1e6, "1e-6ns to 1e6s");
  if (!beta.empty())
    out.constants.bandwidth =
        usable(input::measured(beta, "--beta",
                               {{"B/s", 1}, {"KB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}}, "50GB/s"),
               "--beta " + beta, 1, 1e18, "1B/s to 1e6TB/s");
  if (!flops.empty())
    out.constants.flops = usable(input::flops_of(flops, "--flops"), "--flops " + flops, 1, 1e21, "1FLOPS to 1e6PFLOPS");
  return out;
}

void resolve(question& asked, const architecture& model) {
  setting& run = asked.run;
  run.sequence = asked.sequence.value_or(std::min<count>(4096, std::max<count>(model.positions, 2)));
  if (asked.what == question::question_kind::fit) {
    run.global_batch = asked.global_batch.value_or(std::max<count>(32, 2 * *asked.ranks));
    return check(run, model);
  }
  if (asked.mesh) run.mesh = *asked.mesh;
  if (asked.ranks) {
    const auto ranks = static_cast<long long>(*asked.ranks);
    const long long others = static_cast<long long>(run.mesh.pipeline) * run.mesh.expert * run.mesh.tensor;
    if (!asked.mesh || run.mesh.data == 0) {
      if (ranks % others != 0)
        throw input_error("--ranks " + std::to_string(ranks) + " cannot be divided by the " + std::to_string(others) +
                          " of pp x ep in --mesh: change one of them");
      run.mesh.data = static_cast<int>(ranks / others);
    } else if (run.mesh.ranks() != ranks) {
      throw input_error("--ranks " + std::to_string(ranks) + ", but --mesh " + mesh_text(run.mesh) + " has " +
                        std::to_string(run.mesh.ranks()) + ": leave out --ranks, or dp of --mesh");
    }
  }
  run.mesh.shard_group = static_cast<int>(asked.shard_group);
  run.whole_below = asked.whole_below;
  if (run.gathers == gathers_kind::step && run.zero != 3)
    throw input_error("--gathers step says how long --zero 3 keeps what it gathers: take --zero 3");
  run.micro_batch_size = asked.micro_batch_size.value_or(run.expert_ranks());
  run.global_batch = asked.global_batch.value_or(default_global_batch(run));
  check(run, model);
}

}  // namespace belay_plan
