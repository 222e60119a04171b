// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer's flags. They are checked before anything runs, and refused with the reason where they do not fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "belay/report/trace.hpp"
#include "train_moe/device_rule.hpp"
#include "train_moe/hugging_face.hpp"
#include "train_moe/options.hpp"
#include "train_moe/schedule_choice.hpp"

namespace train_moe {

/// The kind of ranks: threads of this process, processes of this machine, or processes under mpirun.
enum class backend_kind { threads, processes, mpi };

/// The flags as they were given, defaults resolved.
struct command_line {
  options run;
  model_config config;  // the model's, as config.json says it
  backend_kind backend = backend_kind::threads;
  device_kind device = device_kind::host;
  device_choice devices = device_choice::automatic;
  graph_choice graph = graph_choice::automatic;
  belay::cuda::float_products products = belay::cuda::float_products::exact;
  enum class call_ranges { none, nvtx } ranges = call_ranges::none;  // of layers' calls, for a profiler
  enum class attention_form { own, cudnn } attention = attention_form::own;
  std::optional<device_placement> placed;                            // of a run on GPUs, when it has seen them
  schedule_choice choice;                                            // of --schedule auto and greedy
  std::string model = "tiny";
  std::string data;                 // empty: the repository's own headers and documentation
  std::string schedule_costs;       // a file; empty: they are probed, or counted
  std::string json;                 // empty: no JSON lines
  std::string tensorboard;          // a folder; empty: no events
  std::string report;               // a folder; empty: no page
  double peak_flops = 0;            // operations a second of a rank; 0: not known
  std::string trace;                // a file; empty: no trace
  belay::traced_steps trace_steps;  // of a run that is resumed see place_trace()
  enum class traced_by { default_rule, number } traced = traced_by::default_rule;
  std::string eval;         // empty: no evaluation
  std::string export_to;    // empty: no export
  std::string import_from;  // empty: random initialisation
  std::string why_streams;  // by which rule they are what they are; empty: a flag says so
  enum class plan_output { none, print } print_plan = plan_output::none;
};

/// Parses and checks. Returns nothing when the program shall end with `exit_code` (help, or a flag that makes no
/// sense; the message has been printed).
[[nodiscard]] std::optional<command_line> parse(int argc, char** argv, int& exit_code);

/// The sizes of a model into those of a run.
void set_model(options& run, const model_config& from);

/// "pp=2,ep=2" to axes; omitted axes are 1. Throws belay::input_error.
[[nodiscard]] belay::axes parse_mesh(const std::string& text);
/// "optimizer:pinned,parameters" into `run`; `otherwise` is the tier of what names none. Throws belay::input_error.
void parse_offload(const std::string& text, const std::string& otherwise, options& run);
/// "device=512MiB,host=1GiB" to a budget per rank. Throws belay::input_error, with the flag.
[[nodiscard]] belay::budget parse_budget(const std::string& text, const std::string& flag = "--budget");
/// "pinned" to a tier; device where the text names none below it.
[[nodiscard]] belay::tier parse_lower_tier(const std::string& text);
/// "1,2,1" to the layers of each stage. Throws belay::input_error.
[[nodiscard]] std::vector<std::size_t> parse_stage_layers(const std::string& text);
/// "2-4" to the steps of a trace. Throws belay::input_error.
[[nodiscard]] belay::traced_steps parse_trace_steps(const std::string& text);
/// One of the four choices of what is frozen. Throws belay::input_error.
[[nodiscard]] freeze_kind parse_freeze(const std::string& text);
/// "train=4,eval=1,rollout=1" to a cycle: training first, each phase at most once. Throws belay::input_error.
[[nodiscard]] phase_cycle parse_phases(const std::string& text);
[[nodiscard]] std::string mesh_text(const belay::axes& mesh);

}  // namespace train_moe
