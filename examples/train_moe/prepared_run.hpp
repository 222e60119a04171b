// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What all ranks of a run start from: the text, the import, the plan. All of it is read and checked before memory is
// allocated. Also the content of the run's last line.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "belay/report/page.hpp"
#include "belay/report/trace.hpp"
#include "belay/train/launch.hpp"
#include "train_moe/batch.hpp"
#include "train_moe/command_line.hpp"
#include "train_moe/corpus.hpp"
#include "train_moe/hugging_face.hpp"
#include "train_moe/schedule_probe.hpp"
#include "train_moe/step_printer.hpp"

namespace train_moe {

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

// The content of the run's last line.
struct summary {
  std::size_t steps = 0;
  std::optional<double> final_loss;
  std::optional<double> mean_of_last;  // of the last 10 steps
  std::optional<double> eval_loss;
  std::optional<double> tokens_per_s;
  std::string sample;
  std::optional<std::size_t> resumed_from;  // the step, where it was to resume; 0: there was no checkpoint
  bool stopped = false;                     // as asked, before the last step
};

/// Whether this process prints what the run does: one of all processes does.
enum class voice { speaks, silent };

struct prepared_run {
  using rehearsal_of = belay::rehearsal_result (&)(prepared_run& rest);
  using placing = void (*)(command_line& line);

  /// `rehearse` makes the plan; of one that is refused also those of other flags, for which `given` is changed and put
  /// back. Then `place`, where there is one, finds the GPUs of the ranks; where it throws, a plan that shall be printed
  /// is printed first. Throws belay::input_error, belay::file_error or belay::plan_refused, and what `place` throws.
  prepared_run(command_line& given, voice says, rehearsal_of rehearse, placing place = nullptr);
  /// Of a run that is planned and never run: no text, import or budget is looked at, and nothing is printed or written.
  /// Throws belay::input_error where no rehearsal has addresses for it.
  prepared_run(command_line& given, rehearsal_of rehearse);
  prepared_run(const prepared_run&) = delete;  // the source reads from the text beside it
  prepared_run& operator=(const prepared_run&) = delete;

  /// The last line and the result of the run, on the rank that prints.
  void finish(const summary& end);

  /// The part of a page that is about all steps of the run.
  [[nodiscard]] belay::report_subject subject() const;

  const command_line& line;
  corpus text;
  corpus_source source;
  std::vector<std::int32_t> eval_text;  // of evaluations; empty: there are none
  std::optional<model_import> imported;
  belay::rehearsal_result plan;
  std::optional<std::string> tier_file;  // what files of --tier-dir are like, where there are some
  step_printer printer;
  std::optional<belay::report_folder> report;  // of --report, on the rank that prints
  std::optional<belay::trace_file> trace;      // of --trace, likewise
  probed_costs* probed = nullptr;              // of a run that is a probe: where its costs go
};

/// The budgets of the flags, and which of them would need less memory, without numbers: for a step that is replayed
/// with more room. Where the first plan is refused each of them is rehearsed.
[[nodiscard]] belay::launch_options launch_options_of(const options& run);

}  // namespace train_moe
