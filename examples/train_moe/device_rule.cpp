// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/device_rule.hpp"

#include <string>

#include "belay/core/error.hpp"
#include "train_moe/command_line.hpp"

namespace train_moe {

// One line each: what begins to work on a device loses its own.
void expect_runs_on_cuda(const command_line& line) {
  const auto refuse = [](bool wanted, const std::string& flag, const char* why) {
    if (wanted) throw belay::input_error("--device cuda with " + flag + ": " + why);
  };
  refuse(line.backend != backend_kind::threads,
         line.backend == backend_kind::mpi ? "--backend mpi" : "--backend processes",
         "ranks are threads that share device 0: take --backend threads");
  refuse(line.run.freeze != freeze_kind::none, std::string("--freeze ") + name(line.run.freeze),
         "trainers with frozen parts are compiled for the host alone: leave it out");
}

}  // namespace train_moe
