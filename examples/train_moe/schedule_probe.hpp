// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// --schedule auto and greedy without a file of costs: two steps of a model that has one layer a stage, on the ranks of
// the run, before it has a plan or memory, tell what each kind of layer takes. Ranks share what they have measured, so
// that all of them choose by the same numbers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "train_moe/command_line.hpp"
#include "train_moe/schedule_costs.hpp"

namespace train_moe {

/// Whether the costs of `line` are to be probed: a schedule is chosen, of several, without a file, and steps will run.
[[nodiscard]] bool is_probed(const command_line& line);

/// The probe of `line`: one layer a stage, as many micro-batches as stages, backwards in two halves, and nothing
/// beside the steps: no output, import, checkpoint or phases, and state on the device.
[[nodiscard]] command_line probe_of(const command_line& line);

/// The costs of `layers` layers by those of a probe's `stages`, a row each as in a file of costs: the first layer has
/// the embedding, the last one the head, and those between are as a stage between, or as the first one where there is
/// none. Throws belay::input_error.
[[nodiscard]] layer_costs costs_of_probe(std::string_view text, std::size_t stages, std::size_t layers);

/// Measured costs on their way from the ranks to the process that has started them, whose copies share the memory.
class probed_costs {
 public:
  /// Throws std::bad_alloc.
  probed_costs();
  probed_costs(const probed_costs&) = delete;
  probed_costs& operator=(const probed_costs&) = delete;
  ~probed_costs();

  /// By any rank, whose text is that of all ranks: one is kept. One that is too long is not.
  void set(std::string_view text) noexcept;
  /// When the ranks have ended. Nothing where none was set.
  [[nodiscard]] std::optional<std::string> text() const;

 private:
  struct shared_text;
  shared_text* shared_;
};

}  // namespace train_moe
