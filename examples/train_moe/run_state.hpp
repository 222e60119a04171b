// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a checkpoint of a run says beside its tensors: the model, and where in the data the run is. A run that goes on
// from it must have the same model, text and global batch; mesh, precision, schedule and learning rate may differ.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "train_moe/command_line.hpp"
#include "train_moe/corpus.hpp"

namespace train_moe {

class run_state {
 public:
  /// `line` and `text` outlive it.
  run_state(const command_line& line, const corpus& text) : line_(&line), text_(&text) {}

  /// Steps that are done.
  void set_step(std::size_t step) noexcept { step_ = step; }

  /// As JSON.
  [[nodiscard]] std::string save() const;
  /// Throws belay::input_error, with the flag, for a state of another run.
  void load(std::string_view text) const;

 private:
  const command_line* line_;
  const corpus* text_;
  std::size_t step_ = 0;
};

/// The model that a state describes, for an export of it, and the length of its sequences. Throws belay::input_error.
struct described_model {
  model_config config;
  std::size_t sequence = 0;
};
[[nodiscard]] described_model model_of_state(std::string_view text, const std::string& source);

}  // namespace train_moe
