// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/prepared_run.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "belay/core/printable.hpp"
#include "train_moe/host_trainer.hpp"

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
  return {
      {"mesh", mesh_text(run.mesh)},
      {"backend", line.backend == backend_kind::mpi         ? "mpi"
                  : line.backend == backend_kind::processes ? "processes"
                                                            : "threads"},
      {"schedule", run.schedule == schedule_kind::gpipe ? "gpipe" : "1f1b"},
      {"micro_batches", run.micro_batches},
      {"micro_batch_size", run.micro_batch_size},
      {"sequence", run.sequence},
      {"model", line.model},
      {"expert_capacity", run.expert_capacity},
      {"steps", run.steps},
      {"seed", run.seed},
      {"lr", run.learning_rate},
      {"data", line.data.empty() ? BELAY_SOURCE_DIR : line.data},
      {"zero", run.zero == belay::zero_stage::none ? 0 : 1},
      {"recompute", run.recompute == recompute_kind::full ? "full" : "none"},
      {"budget", {{"device", bytes(run.budget[belay::tier::device])}, {"host", bytes(run.budget[belay::tier::host])}}},
      {"json", path(line.json)},
      {"print_plan", line.print_plan == command_line::plan_output::print},
      {"eval", path(line.eval)},
      {"export", path(line.export_to)},
      {"import", path(line.import_from)}};
}

template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

corpus read_corpus(const command_line& line) {
  corpus text = line.data.empty() ? corpus::from_repository(BELAY_SOURCE_DIR) : corpus::from_file(line.data);
  if (line.run.steps > 0) text.require(line.run.sequence);
  return text;
}

std::optional<model_import> read_import(const command_line& line) {
  if (!line.export_to.empty()) check_export_target(line.export_to);
  if (line.import_from.empty()) return std::nullopt;
  return model_import(line.import_from, line.run.sequence);
}

run_plan checked_plan(const command_line& line) {
  const options& run = line.run;
  run_plan plan = rehearse_all<float>(run, initial_capacity(run));
  if (const auto shortage = plan.ranks.shortage(run.budget)) refuse(plan.ranks, *shortage, run);
  return plan;
}

}  // namespace

prepared_run::prepared_run(const command_line& given, voice says)
    : line(given),
      text(read_corpus(given)),
      source(text, given.run.seed),
      eval_text(given.eval.empty() ? std::vector<std::int32_t>() : evaluation_text(given.eval)),
      imported(read_import(given)),
      plan(checked_plan(given)),
      printer(given.run, says == voice::speaks ? given.json : "") {
  if (given.print_plan == command_line::plan_output::print && says == voice::speaks) {
    printer.say(plan_text(plan.ranks, given.run));
  }
}

void prepared_run::finish(const summary& end) {
  const nlohmann::ordered_json last{{"summary", true},
                                    {"steps", end.steps},
                                    {"final_loss", or_null(end.final_loss)},
                                    {"eval_loss", or_null(end.eval_loss)},
                                    {"tokens_per_s", or_null(end.tokens_per_s)},
                                    {"config", config_of(line)}};
  printer.write_json(last.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  char words[256];
  std::string out;
  if (end.final_loss) {
    std::snprintf(words, sizeof words, "\n%zu steps, loss %.4f nats a byte, %.0f tokens/s\n", end.steps,
                  *end.final_loss, end.tokens_per_s.value_or(0));
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
  if (!line.export_to.empty()) out += "exported to " + belay::printable(line.export_to) + "\n";
  if (!end.sample.empty()) out += "\na sample:\n" + end.sample + "\n";
  printer.say(out);
}

}  // namespace train_moe
