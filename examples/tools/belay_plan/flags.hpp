// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What belay-plan is asked.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "belay/device/tier.hpp"
#include "tools/belay_plan/setting.hpp"
#include "tools/belay_plan/step_time.hpp"

namespace belay_plan {

struct question {
  std::string model;  // a preset, or a file
  setting run;
  std::optional<std::size_t> sequence, micro_batch_size, global_batch, ranks;  // as given
  std::optional<belay::axes> mesh;
  std::size_t shard_group = 0;  // 0: all of dp
  std::size_t whole_below = 0;  // bytes
  belay::budget limit;
  enum class question_kind { plan, fit } what = question_kind::plan;
  std::size_t top = 10;                   // answers that --fit shows
  belay::tier lower = belay::tier::host;  // where it offloads to
  time_constants constants;
  enum class output { text, json } format = output::text;
  std::string svg;  // a file; empty: none
};

/// Reads the flags. Nothing where the program shall end with `exit_code`: help was asked for, or a flag makes no sense
/// and was complained about. Throws belay::input_error for values that make none.
[[nodiscard]] std::optional<question> parse(int argc, char** argv, int& exit_code);

/// Takes from the model, where it was not given: the sequence, the mesh, the batches. Throws belay::input_error where
/// ranks and mesh disagree, or the flags do not go together.
void resolve(question& asked, const architecture& model);

}  // namespace belay_plan
