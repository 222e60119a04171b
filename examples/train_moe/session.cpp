// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/session.hpp"

#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "train_moe/corpus.hpp"
#include "train_moe/host_trainer.hpp"
#include "train_moe/plan_text.hpp"
#include "train_moe/step_printer.hpp"
#include "train_moe/weights.hpp"

namespace train_moe {

namespace {

using clock = std::chrono::steady_clock;
using trainer_type = host_trainer<float>;

class corpus_source final : public batch_source {
 public:
  corpus_source(const corpus& text, std::uint64_t seed) : text_(&text), seed_(seed) {}

  void sequence(std::size_t step, std::size_t micro_batch, std::size_t index, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets) const override {
    text_->sequence(seed_, {step, micro_batch, index}, tokens);
    next_token_targets(tokens, targets);
  }

 private:
  const corpus* text_;
  std::uint64_t seed_;
};

// What the run leaves for its last line.
struct summary {
  std::size_t steps = 0;
  std::optional<double> final_loss;
  std::optional<double> mean_of_last;  // of the last 10 steps
  std::optional<double> eval_loss;
  std::optional<double> tokens_per_s;
  std::string sample;
};

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

void finish(const command_line& line, const summary& end, step_printer& printer) {
  const nlohmann::ordered_json last{{"summary", true},
                                    {"steps", end.steps},
                                    {"final_loss", or_null(end.final_loss)},
                                    {"eval_loss", or_null(end.eval_loss)},
                                    {"tokens_per_s", or_null(end.tokens_per_s)},
                                    {"config", config_of(line)}};
  printer.write_json(last.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  char text[256];
  std::string out;
  if (end.final_loss) {
    std::snprintf(text, sizeof text, "\n%zu steps, loss %.4f nats a byte, %.0f tokens/s\n", end.steps, *end.final_loss,
                  end.tokens_per_s.value_or(0));
    out += text;
    if (end.mean_of_last) {
      std::snprintf(text, sizeof text, "mean loss of the last 10 steps: %.4f\n", *end.mean_of_last);
      out += text;
    }
  }
  if (end.eval_loss) {
    std::snprintf(text, sizeof text, "eval loss %.6f nats a byte (%s)\n", *end.eval_loss, line.eval.c_str());
    out += text;
  }
  if (!line.export_to.empty()) out += "exported to " + line.export_to + "\n";
  if (!end.sample.empty()) out += "\na sample:\n" + end.sample + "\n";
  printer.say(out);
}

// Bytes that a terminal shows as they are; others become '.'.
std::string printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte != '\n' && byte != '\t' && (byte < 32 || byte > 126)) c = '.';
  }
  return text;
}

// The body of one rank. What ranks share besides the mesh: the printer (rank 0 prints), the import, the export.
class rank_session {
 public:
  rank_session(const command_line& line, belay::host::rank& rank, const batch_source& source, const run_plan& plan,
               step_printer& printer)
      : line_(line), first_(rank.number() == 0), printer_(printer), trainer_(line.run, rank, source, plan) {}

  void import(const model_import& from) { import_weights(trainer_.machine(), from); }

  void train(summary& end) {
    const options& run = line_.run;
    double recent[10] = {};
    double timed_seconds = 0;
    for (std::size_t step = 1; step <= run.steps; ++step) {
      const auto begin = clock::now();
      const step_result result = trainer_.train(step);
      const double seconds = std::chrono::duration<double>(clock::now() - begin).count();
      if (!first_) continue;
      printer_.print(step, result, seconds, trainer_.shared());
      recent[step % 10] = result.loss;
      // The first step warms up; where it is the only one, it is all there is to time.
      if (step > 1 || run.steps == 1) timed_seconds += seconds;
      end.steps = step;
      end.final_loss = result.loss;
    }
    trainer_.machine().mesh().world().barrier();  // what follows allocates, and the last line counts allocations
    if (!first_ || run.steps == 0) return;
    const std::size_t timed = run.steps > 1 ? run.steps - 1 : 1;
    end.tokens_per_s = static_cast<double>(timed * tokens_per_step(run)) / timed_seconds;
    double sum = 0;
    for (double loss : recent) sum += loss;
    if (run.steps >= 10) end.mean_of_last = sum / 10;
  }

  void evaluate(const std::vector<std::int32_t>& text, summary& end) {
    const evaluation found = train_moe::evaluate<float>(trainer_.machine(), text, line_.run.sequence);
    if (first_) end.eval_loss = found.mean();
  }

  void sample(summary& end) {
    const std::string text =
        train_moe::sample<float>(trainer_.machine(), "The ", 200, line_.run.sequence, 0.8, line_.run.seed);
    if (first_) end.sample = printable(text);
  }

  // Rank 0 opens and commits; everybody writes what it owns in between.
  void export_to(std::unique_ptr<model_export>& folder) {
    const auto& world = trainer_.machine().mesh().world();
    if (first_) folder = std::make_unique<model_export>(line_.export_to, line_.config, line_.run.sequence);
    world.barrier();
    export_weights(trainer_.machine(), *folder);
    world.barrier();
    if (first_) folder->commit();
  }

 private:
  const command_line& line_;
  bool first_;
  step_printer& printer_;
  trainer_type trainer_;
};

}  // namespace

int run_session(const command_line& line) {
  model::one_thread_per_product();
  const options& run = line.run;
  // Everything that can be refused is refused before memory is taken and before the first step.
  const corpus text = line.data.empty() ? corpus::from_repository(BELAY_SOURCE_DIR) : corpus::from_file(line.data);
  if (run.steps > 0) text.require(run.sequence);
  std::vector<std::int32_t> eval_text;
  if (!line.eval.empty()) eval_text = evaluation_text(line.eval);
  if (!line.export_to.empty()) check_export_target(line.export_to);
  std::optional<model_import> imported;
  if (!line.import_from.empty()) imported.emplace(line.import_from, run.sequence);
  const run_plan plan = rehearse_all<float>(run, initial_capacity(run));
  if (const auto shortage = plan.ranks.shortage(run.budget)) refuse(plan.ranks, *shortage, run);
  step_printer printer{run, line.json};
  if (line.print_plan == command_line::plan_output::print) printer.say(plan_text(plan.ranks, run));

  const corpus_source source{text, run.seed};
  summary end;
  std::unique_ptr<model_export> folder;
  // A rank that has a core to itself stays on it and keeps its cache; ranks that share cores are better moved about.
  const bool spare = run.mesh.ranks() <= static_cast<long long>(std::thread::hardware_concurrency());
  const auto pin = spare ? belay::host::pinning::one_core_each : belay::host::pinning::none;
  const belay::host::world world{static_cast<int>(run.mesh.ranks()), {.pin = pin}};
  world.run([&](belay::host::rank& rank) {
    rank_session session{line, rank, source, plan, printer};
    if (imported) session.import(*imported);
    session.train(end);
    if (!eval_text.empty()) session.evaluate(eval_text, end);
    if (run.steps > 0) session.sample(end);
    if (!line.export_to.empty()) session.export_to(folder);
  });
  finish(line, end, printer);
  return 0;
}

}  // namespace train_moe
