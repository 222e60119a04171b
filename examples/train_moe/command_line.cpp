// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/command_line.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <thread>

#include "belay/comm/launcher.hpp"
#include "belay/core/error.hpp"
#include "input/flag_values.hpp"
#include "train_moe/device_rule.hpp"
#include "train_moe/output_files.hpp"
#include "train_moe/run_schedule.hpp"
#include "train_moe/stream_rule.hpp"

namespace train_moe {

namespace {

using belay::input_error;
using input::a_name;
using input::any;
using input::count_of;
using input::whole_number;

// The model of --model, or of --import where that flag was not given; both together must agree.
void resolve_model(command_line& line, bool model_given) {
  options& run = line.run;
  line.config = load_model(line.model, run.sequence);
  if (!line.import_from.empty()) {
    const model_config imported = model_import(line.import_from, run.sequence).config();
    if (model_given) {
      const std::string apart = differences(line.config, imported);
      if (!apart.empty())
        throw input_error("--model " + line.model + " and --import " + line.import_from + " disagree: " + apart);
    } else {
      line.model = line.import_from + "/config.json";
    }
    line.config = imported;
  }
  set_model(run, line.config);
}

void expect_peak(const command_line& line) {
  if (line.report.empty()) throw input_error("--peak-flops is for the page of --report: name its folder");
}

// Sizes that are too large are refused later, by what is wrong with them.
void choose_if_asked(command_line& line) {
  if (is_chosen(line.run.schedule))
    line.choice = choose_schedule(line.run, line.schedule_costs);
  else if (!line.schedule_costs.empty())
    throw input_error("--schedule-costs " + line.schedule_costs +
                      " is what --schedule auto or greedy is chosen by: ask for one of these");
}

void expect_traceable(const command_line& line, const std::string& steps) {
  if (line.run.streams.policy == belay::stream_policy::adversarial)
    throw input_error(
        "--trace with --streams adversarial: its streams are late on purpose, and their times say "
        "nothing: trace with --streams queued or immediate");
  if (line.run.steps == 0)
    throw input_error("--trace with --steps 0: there is no step to be traced: give the run some, or leave out --trace");
  if (line.trace_steps.first > line.run.steps)
    throw input_error("--trace-steps " + steps + ": the run has " + std::to_string(line.run.steps) +
                      (line.run.steps == 1 ? " step" : " steps") + ": trace some of them, or give it more by --steps");
}

}  // namespace

void set_model(options& run, const model_config& from) {
  run.model.vocab = from.vocab_size;
  run.model.hidden = from.hidden_size;
  run.model.expert_width = from.intermediate_size;
  run.model.layers = from.num_hidden_layers;
  run.model.heads = from.num_attention_heads;
  run.model.kv_heads = from.num_key_value_heads;
  run.model.head_dim = from.head_dim;
  run.model.experts = from.num_local_experts;
  run.model.experts_per_token = from.num_experts_per_tok;
  run.model.positions = run.sequence;
  run.model.rope_theta = from.rope_theta;
  run.model.norm_eps = from.rms_norm_eps;
  run.balance_coefficient = from.router_aux_loss_coef;
}

std::optional<command_line> parse(int argc, char** argv, int& exit_code) {
  command_line line;
  options& run = line.run;
  std::string mesh = "pp=2,ep=2";
  std::string backend = "threads", device = "host", devices = "auto";
  std::string stage_layers;
  std::string recompute = "none";
  std::string budget, phase_tier, offload, offload_tier = "host";
  std::string streams, graph = "auto", attention = "own";
  std::string zero = "1";
  std::string gathers = "use", dtype = "fp32", freeze = "none", overlap_pairs = "off";
  std::string phases;
  std::string trace_steps = "2-4", peak_flops;
  bool print_plan = false, resume = false, tf32 = false, nvtx = false;

  CLI::App app{"Trains a byte-level Mixtral over pipeline, expert and data parallel ranks.", "train_moe"};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--mesh", mesh, "ranks on each axis: pp, dp, ep; an omitted one is 1")->type_name("AXES");
  app.add_option("--backend", backend,
                 "what ranks are; under belay-run, mpirun or another launcher this is one of them")
      ->check(CLI::IsMember({"threads", "processes", "mpi"}));
  app.add_option("--device", device, "what computes: this processor, or GPUs")->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--devices", devices,
                 "--device cuda: a GPU for each rank, over NCCL, or one that ranks, threads, share; auto: where there "
                 "are enough, a GPU for each")
      ->check(CLI::IsMember({"auto", "own", "shared"}));
  app.add_option("--graph", graph,
                 "--device cuda: steps are captured as graphs and launched; auto: where ranks have a GPU alone and nothing "
                 "is in the way; without a value: on")
      ->expected(0, 1)
      ->default_str("on")
      ->option_text("auto|on|off (auto)")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_flag("--tf32", tf32,
               "--device cuda: products of fp32, but for experts', by tensor cores, which round operands to 11 bits");
  app.add_option("--attention", attention, "--device cuda --dtype bf16: by Belay's own kernels, or by cuDNN 9")
      ->check(CLI::IsMember({"own", "cudnn"}));
  app.add_flag("--nvtx", nvtx, "--device cuda: layers' calls are ranges of NVTX, for Nsight Systems");
  app.add_option("--schedule", run.schedule,
                 "order of the micro-batches over the pipeline, with V chunks a rank, a file with a table, or auto: "
                 "the shortest that fits --budget")
      ->type_name(
          "gpipe|1f1b|interleaved:V[:G]|bfs:V|interleaved-zb:V|"
          "zb-h1|zb-h2|zb-v|v-half|v-min|dualpipe-v[:atomic]|greedy|auto|FILE.csv");
  app.add_option("--schedule-costs", line.schedule_costs,
                 "--schedule auto and greedy: times of each stage and of a message; default: a probe of two "
                 "steps measures them")
      ->type_name("FILE")
      ->check(a_name());
  app.add_option("--overlap-pairs", overlap_pairs,
                 "a micro-batch's forward runs beside another's backward where the schedule has them side by side: one "
                 "computes while the other's rows travel to experts and back")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--stage-layers", stage_layers,
                 "layers of each stage, in order; default: as even as can be, the first ones have one more")
      ->type_name("N,N,...");
  app.add_option("--micro-batches", run.micro_batches, "micro-batches a step, whatever the mesh")
      ->check(count_of("micro-batches", 1, any));
  app.add_option("--micro-batch-size", run.micro_batch_size, "sequences a micro-batch, whatever the mesh")
      ->check(count_of("sequences", 1, any));
  app.add_option("--sequence", run.sequence, "length of a sequence in bytes")->check(count_of("bytes", 2, any));
  app.add_option("--model", line.model, "tiny, small, or a Hugging Face config.json of a Mixtral")
      ->type_name("tiny|small|FILE.json");
  app.add_option("--expert-capacity", run.expert_capacity,
                 "rows a rank can receive, over the balanced number (at least 1)")
      ->type_name("FACTOR");
  app.add_option("--steps", run.steps, "optimizer steps; 0 only imports, evaluates, exports")
      ->check(count_of("steps", 0, 1000000000));
  app.add_option("--seed", run.seed, "of the initialisation, the data order and the sample")
      ->type_name("NUMBER")
      ->check(whole_number());
  app.add_option("--lr", run.learning_rate, "AdamW's learning rate, per step")->type_name("RATE");
  app.add_option("--data", line.data, "file of text to train on (default: this repository's headers and documentation)")
      ->type_name("FILE");
  app.add_option("--zero", zero,
                 "what the ranks that replicate a parameter divide: 0: nothing; 1: optimizer state; 2: gradients too; "
                 "3: parameters too")
      ->check(CLI::IsMember({"0", "1", "2", "3"}));
  app.add_option("--gathers", gathers,
                 "--zero 3: a layer's parameters are given back after each use, or kept until the step ends")
      ->check(CLI::IsMember({"use", "step"}));
  app.add_option("--shard-group", run.mesh.shard_group,
                 "neighbours along dp that divide what --zero says, replicated over dp/N such groups; 0: all of dp")
      ->check(count_of("ranks", 0, 1024));
  app.add_option("--whole-below", run.whole_below, "--zero 2 and 3: bytes; smaller parameters are not divided")
      ->check(count_of("bytes", 0, any));
  app.add_option("--recompute", recompute,
                 "what the backward runs again: selective: every layer's attention; full: layers, of which the outputs "
                 "alone are kept")
      ->check(CLI::IsMember({"none", "selective", "full"}));
  app.add_option("--dtype", dtype,
                 "of parameters, activations and what ranks send; gradients, moments and, with bf16, a master copy of "
                 "the parameters are fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--freeze", freeze, "what is never trained, and has no gradient and no optimizer state; with fp32")
      ->type_name("none|attention|experts|attention,experts,embedding");
  app.add_option(
         "--streams", streams,
         "when kernels run: at once, on a thread a stream, or late on purpose, to find a missing event (threads "
         "only); default: queued with 3 cores a rank or more, else immediate")
      ->type_name("immediate|queued|adversarial[:SEED]");
  app.add_option("--offload", offload,
                 "what lives in a lower tier: the optimizer's state, which is updated there; shards of parameters "
                 "(--zero 3) and gradients (--zero 2 and 3); what layers keep between forward and backward")
      ->type_name("optimizer[:TIER],parameters[:TIER],gradients[:TIER],activations[:TIER]");
  app.add_option("--tier", offload_tier, "the tier of an --offload that names none")
      ->check(CLI::IsMember({"pinned", "host", "file"}));
  app.add_option("--tier-dir", run.tier_folder, "the folder of tier file: of a fast disk")
      ->type_name("DIR")
      ->check(a_name());
  app.add_option(
         "--phase-tier", phase_tier,
         "with --phases: gradients and the optimizer's state leave the device for this tier in eval and rollout")
      ->check(CLI::IsMember({"pinned", "host", "file"}));
  app.add_option("--budget", budget, "bytes one rank may use in a tier; a plan beyond it is refused")
      ->type_name("device=BYTES,pinned=BYTES,host=BYTES,file=BYTES");
  const auto folder = [&](const char* flag, std::string& to, const char* what) {
    app.add_option(flag, to, what)->type_name("DIR")->check(a_name());
  };
  app.add_option("--json", line.json, "write one JSON object a step, and a summary, to this file")
      ->type_name("FILE")
      ->check(a_name());
  folder("--tensorboard", line.tensorboard,
         "write the numbers of the JSON lines and the sample to a new file of this folder, for TensorBoard");
  folder("--report", line.report,
         "write index.html, a page of curves, memory, experts and tables, and its samples to this folder");
  app.add_option("--peak-flops", peak_flops,
                 "floating-point operations a second that one rank can do, as in 200GFLOPS or 2e11: --report then has "
                 "the share "
                 "of them that the model uses")
      ->type_name("FLOPS");
  app.add_option("--trace", line.trace,
                 "write what all ranks did in some steps to this file, a Chrome trace, which ui.perfetto.dev opens")
      ->type_name("FILE")
      ->check(a_name());
  app.add_option("--trace-steps", trace_steps, "which steps --trace is of, from 1, both included")->type_name("A-B");
  app.add_flag("--print-plan", print_plan, "print the memory plan, itemised per rank, before training");
  folder("--checkpoint", run.checkpoint.folder,
         "save the run's state in this folder, beside the training; with it SIGTERM saves and ends with code 75");
  app.add_option("--checkpoint-every", run.checkpoint.every, "steps between checkpoints; 0: only when asked to stop")
      ->check(count_of("steps", 0, 1000000000));
  app.add_option("--keep", run.checkpoint.keep, "so many of the newest checkpoints; 0: all")
      ->check(count_of("checkpoints", 0, 1000000000));
  app.add_flag("--resume", resume, "go on from the newest checkpoint; --steps is the total");
  app.add_option("--phases", phases,
                 "repeats: training steps, then passes of evaluation and rollouts, as in train=4,eval=1,rollout=1")
      ->type_name("train=N[,eval=N][,rollout=N]");
  app.add_option("--eval", line.eval,
                 "mean cross-entropy of this file's first 16384 bytes after the last step, and in the eval phase")
      ->type_name("FILE")
      ->check(a_name());
  folder("--export", line.export_to, "write the trained model to this folder, as Hugging Face's transformers load it");
  folder("--import", line.import_from, "start from an exported model, with zero moments");
  try {
    app.parse(argc, argv);
    const int shard_group = run.mesh.shard_group;
    run.mesh = parse_mesh(mesh);
    run.mesh.shard_group = shard_group;
    line.backend = backend == "mpi"         ? backend_kind::mpi
                   : backend == "processes" ? backend_kind::processes
                                            : backend_kind::threads;
    line.device = device == "cuda" ? device_kind::cuda : device_kind::host;
    line.devices = device_choice_of(devices);
    if (run.schedule.ends_with(".csv")) run.schedule_text = read_schedule(run.schedule);
    run.overlap_pairs = overlap_pairs == "on";
    if (app.count("--stage-layers") > 0) run.stage_layers = parse_stage_layers(stage_layers);
    run.recompute = recompute == "full"        ? recompute_kind::full
                    : recompute == "selective" ? recompute_kind::selective
                                               : recompute_kind::none;
    run.zero = static_cast<belay::zero_stage>(zero.front() - '0');
    run.reshard = gathers == "step" ? belay::reshard_when::after_step : belay::reshard_when::after_use;
    run.dtype = dtype == "bf16" ? belay::dtype::bf16 : belay::dtype::f32;
    run.freeze = freeze_of(freeze);
    if (app.count("--phases") > 0) run.cycle = parse_phases(phases);
    if (app.count("--offload") > 0) parse_offload(offload, offload_tier, run);
    if (app.count("--offload") == 0 && app.count("--tier") > 0)
      throw input_error("--tier " + offload_tier +
                        " is the tier of an --offload that names none: say what is offloaded");
    if (app.count("--phase-tier") > 0) run.phase_tier = parse_lower_tier(phase_tier);
    if (app.count("--budget") > 0) run.budget = parse_budget(budget);
    if (resume) run.checkpoint.from = belay::resume_from::newest;
    line.print_plan = print_plan ? command_line::plan_output::print : command_line::plan_output::none;
    if (app.count("--streams") > 0) {
      run.streams = parse_streams(streams);
      if (line.device == device_kind::cuda)
        throw input_error("--device cuda with --streams " + streams + ": its streams are the device's, leave it out");
    } else if (line.device == device_kind::host) {
      const stream_rule chosen = streams_by_rule(static_cast<std::size_t>(run.mesh.ranks()),
                                                 std::thread::hardware_concurrency(), belay::find_launcher());
      run.streams.policy = chosen.policy;
      line.why_streams = chosen.why;
    }
    if (run.streams.policy == belay::stream_policy::adversarial && line.backend != backend_kind::threads)
      throw input_error("--streams " + streams +
                        " needs ranks that are threads of one process: --backend threads, not " + backend);
    if (app.count("--peak-flops") > 0) line.peak_flops = input::flops_of(peak_flops, "--peak-flops");
    if (line.peak_flops > 0) expect_peak(line);
    if (app.count("--trace-steps") > 0 && line.trace.empty())
      throw input_error("--trace-steps " + trace_steps + " says which steps a --trace is of: name its file");
    line.trace_steps = parse_trace_steps(trace_steps);
    line.traced =
        app.count("--trace-steps") > 0 ? command_line::traced_by::number : command_line::traced_by::default_rule;
    if (line.traced == command_line::traced_by::default_rule)
      line.trace_steps = {std::min(line.trace_steps.first, run.steps), std::min(line.trace_steps.last, run.steps)};
    if (!line.trace.empty()) expect_traceable(line, trace_steps);
    expect_outputs_apart(line);
    resolve_model(line, app.count("--model") > 0);
    choose_if_asked(line);
    check(run);
    if (tf32) line.products = belay::cuda::float_products::tf32;
    if (nvtx) line.ranges = command_line::call_ranges::nvtx;
    if (attention == "cudnn") line.attention = command_line::attention_form::cudnn;
    expect_devices_fit(line);
    line.graph = graph_choice_of(graph);
    choose_graphs(line);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  } catch (const belay::error& error) {
    std::fprintf(stderr, "train_moe: %s\n", belay::printable_what(error).c_str());
    exit_code = 2;
    return std::nullopt;
  }
  return line;
}

}  // namespace train_moe
