// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The costs of a micro-batch in each layer of a model, in whole numbers of one unit: a schedule is chosen by them, and
// they are the same on every rank.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "belay/parallel/schedule.hpp"
#include "train_moe/options.hpp"
#include "train_moe/report_table.hpp"

namespace train_moe {

struct layer_costs {
  std::vector<belay::schedule::stage_costs> layers;  // the first with the embedding, the last with the head
  belay::schedule::ticks message = 0;                // a tensor between two ranks

  /// Those of stages of so many layers, in order. A stage without layers, of the embedding or the head alone, takes
  /// nothing: what these take is counted with the layer beside them.
  [[nodiscard]] belay::schedule::table_costs of_stages(const std::vector<std::size_t>& layers_of_stages) const;
};

/// The multiplications of a token in each layer, by the model's hidden size; a backward's two halves take as long as a
/// forward, but scores count twice in the first one. Messages take no time.
[[nodiscard]] layer_costs counted_costs(const options& run);

/// The costs of a file:
///
///   belay-costs 1,20      what a message takes
///   100,110,90            F, I and W of the first stage,
///   120,130,100           and of the next: as many rows as there are stages, of layers as even as can be
///
/// Throws belay::input_error with the row.
[[nodiscard]] layer_costs costs_of_text(std::string_view text, std::size_t layers);

/// costs_of_text of the file `path`. Throws belay::input_error, with its name, and belay::file_error.
[[nodiscard]] layer_costs read_costs(const std::string& path, std::size_t layers);

/// The least time of each stage of a run, over all steps, as the text of a file of costs.
class measured_costs {
 public:
  explicit measured_costs(std::size_t stages) : least_(stages) {}

  /// Those of a step, as ranks have shared them.
  void add(const stage_seconds& of_step) noexcept;
  /// A step's mean of one kind of compute of a stage: not a number where it was not measured, 0 where there is none.
  void add(std::size_t stage, belay::schedule::action_kind kind, double seconds) noexcept;
  /// The time of a message; 0 until it is given.
  void set_message(double seconds) noexcept { message_ = seconds; }
  /// In microseconds; a backward that was run whole is half I and half W. Nothing where that was not
  /// measured.
  [[nodiscard]] std::optional<std::string> text() const;

 private:
  struct stage_seconds_of {
    double forward = 0, backward = 0, input_gradient = 0, weight_gradient = 0;
  };
  std::vector<stage_seconds_of> least_;
  double message_ = 0;
};

}  // namespace train_moe
