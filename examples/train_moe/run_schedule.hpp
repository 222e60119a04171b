// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The schedule of a run: its table, and which layers of the model the stages have. This is where the name of a schedule
// becomes a table.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "belay/comm/group.hpp"
#include "belay/parallel/schedule.hpp"
#include "model/mixtral.hpp"
#include "train_moe/options.hpp"

namespace train_moe {

/// The table of `run.schedule`, of the micro-batches of one pipeline; with pairs where they overlap. Throws
/// belay::input_error, with the flag and what would work, for a name that is none, a table that these ranks and
/// micro-batches do not have, and a file whose table cannot run.
[[nodiscard]] belay::schedule::dynamic_table schedule_of(const options& run);

/// Throws belay::input_error on all ranks where they have different tables: ranks that are processes have chosen, or
/// read, each for itself. Collective over `all`.
void expect_one_schedule(const options& run, const belay::group& all);

/// Layers of each of `stages` stages: as --stage-layers says, else as even as can be, the first with one more. Throws
/// belay::input_error where these are not the model's layers, or a stage has none.
[[nodiscard]] std::vector<std::size_t> layers_of_stages(const options& run, std::size_t stages);

/// The parts of the model that rank `rank` of a pipeline holds, by chunk.
[[nodiscard]] std::vector<model::model_part> parts_of_rank(const options& run,
                                                           const belay::schedule::dynamic_table& table,
                                                           std::size_t rank);

/// Pairs of a pipeline that overlap in a step.
[[nodiscard]] std::size_t overlapped_pairs(const options& run, const belay::schedule::dynamic_table& table);

/// Layers of the rank that holds most.
[[nodiscard]] std::size_t most_layers_of_rank(const options& run, const belay::schedule::dynamic_table& table);

/// The text of a file of --schedule, which has some. Throws belay::file_error and belay::input_error.
[[nodiscard]] std::string read_schedule(const std::string& path);

/// "1,1,2,1"
[[nodiscard]] std::string layers_text(const std::vector<std::size_t>& layers);

}  // namespace train_moe
