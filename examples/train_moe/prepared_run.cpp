// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/prepared_run.hpp"

#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "belay/core/checked_size.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/report/output.hpp"
#include "model/products.hpp"
#include "train_moe/advice.hpp"
#include "train_moe/offload_proposal.hpp"
#include "train_moe/output_files.hpp"
#include "train_moe/run_schedule.hpp"

namespace train_moe {

namespace {

nlohmann::ordered_json config_of(const command_line& line) {
  const options& run = line.run;
  const auto path = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const auto bytes = [](std::size_t value) {
    return value == belay::unlimited_bytes ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  const belay::schedule::dynamic_table table = schedule_of(run);
  return {{"mesh", mesh_text(run.mesh)},
          {"backend", line.backend == backend_kind::mpi         ? "mpi"
                      : line.backend == backend_kind::processes ? "processes"
                                                                : "threads"},
          {"device", name(line.device)},
          {"devices",
           line.placed ? nlohmann::ordered_json(line.placed->own() ? "own" : "shared") : nlohmann::ordered_json()},
          {"graph", run.graphs == belay::graph_use::captured},
          {"attention", line.attention == command_line::attention_form::cudnn ? "cudnn" : "own"},
          {"tf32", line.products == belay::cuda::float_products::tf32},
          {"nvtx", line.ranges == command_line::call_ranges::nvtx},
          {"schedule", run.schedule},
          {"schedule_costs", path(line.schedule_costs)},
          {"overlap_pairs", run.overlap_pairs ? "on" : "off"},
          {"chunks", table.chunks()},
          {"stage_layers", layers_of_stages(run, table.stages())},
          {"micro_batches", run.micro_batches},
          {"micro_batch_size", run.micro_batch_size},
          {"sequence", run.sequence},
          {"model", line.model},
          {"expert_capacity", run.expert_capacity},
          {"steps", run.steps},
          {"seed", run.seed},
          {"lr", run.learning_rate},
          {"data", line.data.empty() ? BELAY_SOURCE_DIR : line.data},
          {"streams", line.device == device_kind::cuda ? nlohmann::ordered_json()
                                                       : nlohmann::ordered_json(streams_text(run.streams))},
          {"zero", static_cast<int>(run.zero)},
          {"shard_group", run.mesh.shards()},
          {"whole_below", run.whole_below},
          {"gathers", run.reshard == belay::reshard_when::after_step ? "step" : "use"},
          {"recompute", run.recompute == recompute_kind::full        ? "full"
                        : run.recompute == recompute_kind::selective ? "selective"
                                                                     : "none"},
          {"freeze", name(run.freeze)},
          {"dtype", run.dtype == belay::dtype::bf16 ? "bf16" : "fp32"},
          {"phases", path(run.cycle.text())},
          {"offload", path(offload_text(run))},
          {"phase_tier", path(run.phase_tier == belay::tier::device ? "" : belay::name(run.phase_tier))},
          {"tier_dir", path(run.tier_folder)},
          {"budget",
           {{"device", bytes(run.budget[belay::tier::device])},
            {"pinned", bytes(run.budget[belay::tier::pinned])},
            {"host", bytes(run.budget[belay::tier::host])},
            {"file", bytes(run.budget[belay::tier::file])}}},
          {"json", path(line.json)},
          {"tensorboard", path(line.tensorboard)},
          {"print_plan", line.print_plan == command_line::plan_output::print},
          {"eval", path(line.eval)},
          {"report", path(line.report)},
          {"peak_flops", line.peak_flops > 0 ? nlohmann::ordered_json(line.peak_flops) : nlohmann::ordered_json()},
          {"trace", path(line.trace)},
          {"trace_steps", line.trace.empty() ? nlohmann::ordered_json()
                                             : nlohmann::ordered_json{line.trace_steps.first, line.trace_steps.last}},
          {"checkpoint", path(run.checkpoint.folder)},
          {"checkpoint_every", run.checkpoint.every},
          {"keep", run.checkpoint.keep},
          {"resume", run.checkpoint.from != belay::resume_from::nothing},
          {"export", path(line.export_to)},
          {"import", path(line.import_from)}};
}

// Of a run that names its schedule there is none.
nlohmann::ordered_json json_of(const schedule_choice& choice) {
  if (!choice.any()) return {};
  nlohmann::ordered_json layers = nlohmann::ordered_json::array(), refused = nlohmann::ordered_json::array();
  for (const belay::schedule::stage_costs& each : choice.costs.layers)
    layers.push_back({each.forward, each.input_gradient, each.weight_gradient});
  for (const auto& each : choice.not_taken())
    refused.push_back({{"schedule", each.name},
                       {"total", each.total > 0 ? nlohmann::ordered_json(each.total) : nlohmann::ordered_json()},
                       {"reason", each.reason}});
  return {{"asked", choice.asked},
          {"schedule", choice.tables[choice.taken].name},
          {"total", choice.tables[choice.taken].total},
          {"by", choice.costs_of},
          {"layers", layers},
          {"message", choice.costs.message},
          {"refused", refused}};
}

// For people: of what has parts those that are known; empty where none is.
std::string setting_text(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_structured()) return value.dump();
  std::string out;
  for (const auto& [name, part] : value.items())
    if (const std::string text = setting_text(part); !text.empty())
      out += (out.empty() ? "" : ", ") + (value.is_object() ? name + " " : "") + text;
  return out;
}

// As the flag has it.
std::string traced_text(const command_line& line) {
  return std::to_string(line.trace_steps.first) + "-" + std::to_string(line.trace_steps.last);
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

// A folder of another run's checkpoints is not written to.
void expect_new_or_resumed(command_line& line) {
  const checkpoint_settings& saved = line.run.checkpoint;
  if (saved.folder.empty()) return;
  const auto found = belay::checkpoint_folder<>(saved.folder).committed();
  if (found.empty()) return;
  if (saved.from != belay::resume_from::nothing)
    place_trace(line, found.back());
  else
    throw belay::input_error("--checkpoint " + saved.folder + " has checkpoints, the newest of step " +
                             std::to_string(found.back()) + ": go on from it with --resume, or name another folder");
}

corpus read_corpus(command_line& line) {
  expect_new_or_resumed(line);
  corpus text = line.data.empty() ? corpus::from_repository(BELAY_SOURCE_DIR) : corpus::from_file(line.data);
  if (line.run.steps > 0) text.require(line.run.sequence);
  return text;
}

// Of --eval, or what training does not read where there are phases of evaluation.
std::vector<std::int32_t> text_to_evaluate(const command_line& line, corpus& text) {
  if (!line.eval.empty()) return evaluation_text(line.eval);
  if (!line.run.cycle.has(belay::phase::eval)) return {};
  const std::string held_out = text.hold_out(most_evaluated_bytes);
  if (line.run.steps > 0) text.require(line.run.sequence);
  return tokens_of(held_out);
}

std::optional<model_import> read_import(const command_line& line) {
  if (!line.export_to.empty()) {
    check_export_target(line.export_to);
    check_export_place(line.export_to);
  }
  if (line.import_from.empty()) return std::nullopt;
  return model_import(line.import_from, line.run.sequence);
}

// "adversarial:7", as the flag said; "queued (12 cores for 4 ranks, 3 a rank are enough)", by its rule.
std::string streams_of(const command_line& line) {
  if (line.device == device_kind::cuda) return "the device's";
  const std::string out = streams_text(line.run.streams);
  return line.why_streams.empty() ? out : out + " (" + line.why_streams + ")";
}

std::optional<std::string> files_of(const options& run) {
  if (!uses_files(run)) return std::nullopt;
  return belay::medium_of(run.tier_folder).text();
}

// A size that no rehearsal has addresses for is one of the flags'.
belay::rehearsal_result plan_of(prepared_run::rehearsal_of rehearse, prepared_run& rest) {
  const auto refuse = [&run = rest.line.run](const std::exception& problem) {
    throw belay::input_error("--sequence " + std::to_string(run.sequence) + ", --micro-batch-size " +
                             std::to_string(run.micro_batch_size) + " and --micro-batches " +
                             std::to_string(run.micro_batches) +
                             " are together more than can be planned: make one of them smaller. " + problem.what());
  };
  try {
    return rehearse(rest);
  } catch (const belay::budget_error& problem) {
    refuse(problem);
  } catch (const belay::size_error& problem) {
    refuse(problem);
  }
  return {};
}

// With the row of what its ranks communicate over, as budgets count it.
belay::rehearsal_result with_communication(const belay::rehearsal_result& plan) {
  return priced(plan, plan.communication);
}

// Of tables that could be chosen the shortest of which the plan fits; where none does, that which lacks least.
belay::rehearsal_result plan_of_choice(prepared_run::rehearsal_of rehearse, prepared_run& rest, command_line& given) {
  schedule_choice& choice = given.choice;
  if (!choice.any()) return plan_of(rehearse, rest);
  std::size_t nearest = 0;
  std::uint64_t least = belay::largest_size;
  const std::size_t first = choice.taken;
  for (std::size_t number = first; number < choice.tables.size(); ++number) {
    choice.take(number, given.run);
    belay::rehearsal_result plan = plan_of(rehearse, rest);
    const auto missing = with_communication(plan).plan.shortage(given.run.budget);
    if (!missing) return plan;
    if (missing->needed_bytes - missing->budget_bytes < least)
      nearest = number, least = missing->needed_bytes - missing->budget_bytes;
    choice.refuse(number, "needs " + std::to_string(missing->needed_bytes) + " bytes of " +
                              belay::name(missing->where_it_is) + " on rank " + std::to_string(missing->rank) +
                              ", which has " + std::to_string(missing->budget_bytes));
  }
  choice.take(nearest, given.run);
  return plan_of(rehearse, rest);
}

// Of a run that is refused an --offload is proposed, and each single change of its flags is rehearsed with the same
// text.
belay::rehearsal_result fitting(belay::rehearsal_result plan, prepared_run::rehearsal_of rehearse, prepared_run& rest,
                                options& run) {
  const options given = run;
  const belay::rehearsal_result whole = with_communication(plan);
  belay::launch_options how = launch_options_of(given);
  how.advice = [&](belay::tier of) {
    const auto with = [&](const options& changed) {
      run = changed;
      return with_communication(rehearse(rest));
    };
    std::vector<std::string> lines{propose_offload(given, whole.plan, with).text()};
    for (std::string& line : rehearsed_advice(of, given, whole.plan, with)) lines.push_back(std::move(line));
    run = given;
    return lines;
  };
  expect_fits(whole, how, 1, belay::where{});
  return plan;
}

// "schedule interleaved:2: 2 stages a rank, layers of the stages 1,1,1,1; 12 pairs overlap"
std::string schedule_text(const options& run) {
  const belay::schedule::dynamic_table table = schedule_of(run);
  return "schedule " + belay::printable(run.schedule) + ": " + std::to_string(table.chunks()) +
         (table.chunks() == 1 ? " stage" : " stages") + " a rank, layers of the stages " +
         layers_text(layers_of_stages(run, table.stages())) +
         (run.overlap_pairs ? "; " + std::to_string(overlapped_pairs(run, table)) + " pairs overlap\n" : "\n");
}

std::string plan_text(const command_line& line, const belay::rehearsal_result& plan) {
  return schedule_text(line.run) + plan.text(launch_options_of(line.run)) +
         propose_offload(line.run, with_communication(plan).plan, {}).text() + "\n";
}

// The plan before any device is asked. Threads that turn out to have a device each are planned anew, as such.
belay::rehearsal_result placed_plan(prepared_run::rehearsal_of rehearse, prepared_run& rest, command_line& given,
                                    voice says, prepared_run::placing place) {
  const auto planned = [&] { return fitting(plan_of_choice(rehearse, rest, given), rehearse, rest, given.run); };
  belay::rehearsal_result plan = planned();
  if (place == nullptr) return plan;
  try {
    place(given);
  } catch (const std::exception&) {
    if (given.print_plan == command_line::plan_output::print && says == voice::speaks)
      belay::output(stdout, "standard output")
          .write(plan_text(given, plan) + "rehearsed on the host: no GPU was asked what libraries take of it beside\n");
    throw;
  }
  return given.backend == backend_kind::threads && given.placed && given.placed->own() ? planned() : std::move(plan);
}

}  // namespace

prepared_run::prepared_run(command_line& given, voice says, rehearsal_of rehearse, placing place)
    : line(given),
      text(read_corpus(given)),
      source(text, given.run.seed),
      eval_text(text_to_evaluate(given, text)),
      imported(read_import(given)),
      // It reads the rest, before anything is opened for writing.
      plan(placed_plan(rehearse, *this, given, says, place)),
      tier_file(files_of(given.run)),
      printer(given.run, says == voice::speaks ? given.json : "", says == voice::speaks ? given.tensorboard : "") {
  if (!given.report.empty() && says == voice::speaks)
    report.emplace(given.report,
                   given.run.checkpoint.from == belay::resume_from::nothing ? belay::report_start::afresh
                                                                            : belay::report_start::resumed,
                   belay::where{});
  if (!given.trace.empty() && says == voice::speaks) trace.emplace(given.trace, belay::where{});
  if (given.print_plan == command_line::plan_output::print && says == voice::speaks)
    printer.say(plan_text(given, plan));
  if (given.choice.any() && says == voice::speaks) printer.say("schedule: " + given.choice.words() + "\n");
  if (given.run.steps > 0 && says == voice::speaks)
    printer.say("products: " + (given.device == device_kind::cuda ? "cuBLAS" : model::product_backend()) +
                "\nstreams: " + streams_of(given) + "\n" +
                (given.placed ? "devices: " + given.placed->text + "\n" : ""));
  if (tier_file && says == voice::speaks)
    printer.say("files of " + belay::printable(given.run.tier_folder) + ": " + *tier_file + "\n");
}

prepared_run::prepared_run(command_line& given, rehearsal_of rehearse)
    : line(given),
      text(corpus::none()),
      source(text, given.run.seed),
      plan(plan_of(rehearse, *this)),
      printer(given.run, "", "") {}

belay::launch_options launch_options_of(const options& run) {
  belay::launch_options out;
  out.budget = run.budget;
  out.streams = run.streams;
  out.products = model::products();
  out.explain_faults = belay::fault_explanation::by_handler;
  out.advice = [run](belay::tier of) { return advice(of, run); };
  return out;
}

belay::report_subject prepared_run::subject() const {
  const options& run = line.run;
  belay::report_subject out;
  out.title = "train_moe " + line.model + ", " + mesh_text(run.mesh);
  out.steps = run.steps;
  out.ranks = static_cast<std::size_t>(run.mesh.ranks());
  out.layers = run.model.layers, out.experts = run.model.experts;
  out.shown_rank = belay::fullest_rank(plan.plan);
  out.memory = belay::report_rows(plan.plan, out.shown_rank);
  out.loss_unit = "nats a byte";
  const nlohmann::ordered_json config = config_of(line);
  for (const auto& [name, value] : config.items()) {
    std::string shown = setting_text(value);
    if (name == "trace_steps" && !shown.empty()) shown = traced_text(line);
    if (!shown.empty()) out.setup.push_back({name, shown});
  }
  if (line.choice.any()) out.setup.push_back({"schedule_choice", line.choice.words()});
  return out;
}

void prepared_run::finish(const summary& end) {
  // Costs are of stages that are cut evenly.
  std::optional<std::string> measured;
  if (line.run.stage_layers.empty()) measured = printer.measured();
  const nlohmann::ordered_json last{
      {"summary", true},
      {"steps", end.steps},
      {"final_loss", or_null(end.final_loss)},
      {"eval_loss", or_null(end.eval_loss)},
      {"tokens_per_s", or_null(end.tokens_per_s)},
      {"resumed_from", or_null(end.resumed_from)},
      {"stopped", end.stopped},
      {"tier_file", or_null(tier_file)},
      {"schedule_choice", json_of(line.choice)},
      {"pairs", overlapped_pairs(line.run, schedule_of(line.run))},
      {"communication_bytes",
       plan.communication.bytes > 0 ? nlohmann::ordered_json(plan.communication.bytes) : nlohmann::ordered_json()},
      {"measured_costs", or_null(measured)},
      {"config", config_of(line)}};
  printer.write_json(last.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  printer.write_events([&](belay::event_file& events) {
    if (end.eval_loss) events.scalar("eval_loss", *end.eval_loss);
    if (!end.sample.empty()) events.text("sample", "```\n" + end.sample + "\n```");
    events.write(end.steps);
  });
  char words[256];
  std::string out;
  if (end.final_loss) {
    std::snprintf(words, sizeof words, "\n%zu step%s, loss %.4f nats a byte, %.0f tokens/s\n", end.steps,
                  end.steps == 1 ? "" : "s", *end.final_loss, end.tokens_per_s.value_or(0));
    out += words;
    if (end.mean_of_last) {
      std::snprintf(words, sizeof words, "mean loss of the last 10 steps: %.4f\n", *end.mean_of_last);
      out += words;
    }
  }
  if (end.eval_loss) {
    std::snprintf(words, sizeof words, "eval loss %.6f nats a byte", *end.eval_loss);
    out += words + (" (" + belay::printable(line.eval)) + ")\n";
  }
  if (end.stopped)
    out += "stopped as asked after step " + std::to_string(end.steps) + "; the same flags with --resume go on\n";
  else if (!line.export_to.empty())
    out += "exported to " + belay::printable(line.export_to) + "\n";
  if (!end.sample.empty()) out += "\na sample:\n" + end.sample + "\n";
  printer.say(out);
}

}  // namespace train_moe
