// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/device_rule.hpp"

#include <string>

#include "belay/core/error.hpp"
#include "belay/device/tier.hpp"
#include "belay/train/graph_use.hpp"
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

void use_graphs(command_line& line) {
  options& run = line.run;
  const auto refuse = [](bool wanted, const std::string& flag, const char* why) {
    if (wanted) throw belay::input_error("--graph " + flag + ": " + why);
  };
  refuse(line.device != device_kind::cuda, "without --device cuda", "streams of the host have no graphs");
  refuse(run.mesh.expert > 1, "with ep=" + std::to_string(run.mesh.expert),
         "an exchange between ranks waits for counts on the host, which no graph does: take --mesh pp=1");
  refuse(run.mesh.ranks() > 1, "with " + std::to_string(run.mesh.ranks()) + " ranks",
         "they share a device, and meet on the host in each operation, which no graph has: take --mesh pp=1");
  refuse(run.optimizer_tier != belay::tier::device || run.activation_tier != belay::tier::device ||
             run.parameter_tier != belay::tier::device || run.gradient_tier != belay::tier::device,
         "with --offload", "copies between tiers are not captured: leave one of them out");
  run.graphs = belay::graph_use::captured;
}

}  // namespace train_moe
