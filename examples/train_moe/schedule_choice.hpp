// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// --schedule auto and greedy: which tables the run could have, the shortest first. Of these it takes the first one of
// which the rehearsed plan fits the budget: nobody estimates bytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "belay/parallel/schedule.hpp"
#include "train_moe/options.hpp"
#include "train_moe/schedule_costs.hpp"

namespace train_moe {

struct schedule_choice {
  struct considered_table {
    std::string name;
    std::string text;                  // as CSV, of a table without a name of its own
    belay::schedule::ticks total = 0;  // of all micro-batches
  };
  struct refused_table {
    std::string name;
    std::string reason;
    belay::schedule::ticks total = 0;  // 0: it was refused for what it is
  };

  std::string asked;     // "auto" or "greedy"; empty: the run has named its schedule
  std::string costs_of;  // where the costs are from: a file, or how they were counted
  layer_costs costs;
  std::vector<considered_table> tables;  // in the order in which they are tried
  std::size_t taken = 0;                 // of these
  std::vector<refused_table> refused;    // that cannot be had, and those of which no plan fits

  [[nodiscard]] bool any() const noexcept { return !asked.empty(); }
  /// "zb-v, which auto chose of 9 tables, by the costs of c.csv"
  [[nodiscard]] std::string words() const;
  /// The other tables, and why each was not taken.
  [[nodiscard]] std::vector<refused_table> not_taken() const;
  /// Takes the table `number`, and puts it into `run`.
  void take(std::size_t number, options& run);
  /// That no plan with `number` fits.
  void refuse(std::size_t number, const std::string& why);
};

/// Whether `name` is one that stands for a choice.
[[nodiscard]] bool is_chosen(const std::string& name);

/// The tables that `run`, whose schedule is auto or greedy, could have, by `costs`, which are `costs_of` (as in "the
/// costs of c.csv"); the first is taken. The same on every rank. Throws belay::input_error.
[[nodiscard]] schedule_choice choose_schedule(options& run, layer_costs costs, std::string costs_of);
/// By the costs of the file `costs`, or else counted ones. Throws belay::file_error too.
[[nodiscard]] schedule_choice choose_schedule(options& run, const std::string& costs);

}  // namespace train_moe
