// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/planned_run.hpp"

#include <utility>

#include "train_moe/host_ranks.hpp"

namespace train_moe {

belay::rehearsal_result planned_run(command_line line) {
  check(line.run);
  prepared_run prepared(line, rehearsed);
  return std::move(prepared.plan);
}

}  // namespace train_moe
