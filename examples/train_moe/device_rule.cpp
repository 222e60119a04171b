// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "train_moe/device_rule.hpp"

#include <optional>
#include <string>

#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/train/step_graphs.hpp"
#include "train_moe/command_line.hpp"

namespace train_moe {

using belay::cuda::rank_devices;

namespace {

std::string counted(int number, const char* what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

constexpr const char* shared_devices =
    "ranks that share a device meet on the host in each operation, which no graph has: take --mesh pp=1, or a GPU for "
    "each";

// A flag with which steps cannot be captured.
struct graph_obstacle {
  std::string flag;
  const char* why;
};
// The first that these flags have.
std::optional<graph_obstacle> obstacle_to_graphs(const command_line& line) {
  const options& run = line.run;
  const auto in_file = [](belay::tier in) { return in == belay::tier::file; };
  if (line.device != device_kind::cuda)
    return graph_obstacle{"without --device cuda", "streams of the host have no graphs"};
  if (run.mesh.expert > 1)
    return graph_obstacle{"with ep=" + std::to_string(run.mesh.expert),
                          "an exchange between ranks waits for counts on the host, which no graph does: take ep=1"};
  if (run.mesh.ranks() > 1 && line.devices == device_choice::shared)
    return graph_obstacle{"with --devices shared", shared_devices};
  if (in_file(run.optimizer_tier) || in_file(run.activation_tier) || in_file(run.parameter_tier) ||
      in_file(run.gradient_tier))
    return graph_obstacle{
        "with --offload to tier file",
        "the host reads and writes a file between the copies of a step, which no graph has: take tier pinned "
        "or host"};
  return std::nullopt;
}

void expect_nccl(nccl_support nccl) {
  if (nccl == nccl_support::compiled) return;
  throw belay::backend_error(
      {"open", 0, 0,
       "this train_moe was built without NCCL, over which ranks with a GPU each communicate: install NCCL 2.28.9 or "
       "later (nccl.h and libnccl, beside the CUDA toolkit or in NCCL_ROOT) and build it anew",
       belay::where::current()});
}

}  // namespace

device_choice device_choice_of(const std::string& text) {
  if (text == "own") return device_choice::own;
  return text == "shared" ? device_choice::shared : device_choice::automatic;
}

device_placement placed_threads(device_choice chosen, int ranks, int devices, nccl_support nccl) {
  const auto shared = [ranks](const std::string& why) -> device_placement {
    if (ranks == 1) return {rank_devices::one_shared, "device 0"};
    return {rank_devices::one_shared, std::to_string(ranks) + " ranks share device 0 (" + why + ")"};
  };
  const std::string here = counted(devices, "GPU") + " for " + counted(ranks, "rank");
  if (chosen == device_choice::shared) return shared("--devices shared");
  if (chosen == device_choice::automatic) {
    if (devices < ranks || ranks == 1) return shared(here);
    if (nccl == nccl_support::absent) return shared(here + ", but the program was built without NCCL");
  }
  expect_nccl(nccl);
  if (devices < ranks)
    throw belay::input_error("--devices own: there " + std::string(devices == 1 ? "is " : "are ") + here +
                             ": take fewer ranks, or --devices shared");
  return {rank_devices::one_each, "one for each rank, over NCCL (" + here + ")"};
}

device_placement placed_processes(nccl_support nccl) {
  expect_nccl(nccl);
  return {rank_devices::one_each, "one for each rank, over NCCL, by its number among the ranks of its machine"};
}

device_placement placed_processes(nccl_support nccl, const belay::launcher_environment& launched, int devices) {
  const device_placement out = placed_processes(nccl);
  if (launched.local_size != launched.size || devices >= launched.size) return out;
  throw belay::input_error("--device cuda: rank " + std::to_string(devices) + " has no GPU: a process sees " +
                           counted(devices, "GPU") + " for " + counted(launched.size, "rank") +
                           " of this machine, and each that is a process takes one of its own: take fewer ranks, or "
                           "--backend threads, whose ranks can share one");
}

// One line each: what begins to work on a device loses its own.
void expect_devices_fit(const command_line& line) {
  if (line.device != device_kind::cuda) {
    if (line.devices != device_choice::automatic)
      throw belay::input_error("--devices says which GPUs ranks have: take it with --device cuda");
    if (line.products == belay::cuda::float_products::tf32)
      throw belay::input_error("--tf32 is of the tensor cores of a GPU: take it with --device cuda");
    if (line.attention == command_line::attention_form::cudnn)
      throw belay::input_error("--attention cudnn is of a GPU: take it with --device cuda");
    if (line.ranges == command_line::call_ranges::nvtx)
      throw belay::input_error("--nvtx names calls for a profiler of GPUs: take it with --device cuda");
    return;
  }
  const auto refuse = [](bool wanted, const std::string& flag, const char* why) {
    if (wanted) throw belay::input_error("--device cuda with " + flag + ": " + why);
  };
  refuse(line.devices == device_choice::shared && line.backend != backend_kind::threads,
         "--devices shared and --backend " + std::string(line.backend == backend_kind::mpi ? "mpi" : "processes"),
         "ranks that share a GPU are threads: take --backend threads, or --devices own");
  const bool by_cudnn = line.attention == command_line::attention_form::cudnn;
  refuse(by_cudnn && line.run.dtype != belay::dtype::bf16, "--attention cudnn",
         "cuDNN attends in bf16: take --dtype bf16, or --attention own");
  refuse(by_cudnn && (line.backend != backend_kind::threads || line.devices == device_choice::own), "--attention cudnn",
         "its ranks are threads that share a GPU: take --backend threads and --devices shared, or --attention own");
  refuse(line.run.freeze != freeze_kind::none, std::string("--freeze ") + name(line.run.freeze),
         "trainers with frozen parts are compiled for the host alone: leave it out");
}

graph_choice graph_choice_of(const std::string& text) {
  if (text == "on") return graph_choice::on;
  return text == "off" ? graph_choice::off : graph_choice::automatic;
}

void choose_graphs(command_line& line) {
  if (line.graph == graph_choice::off) return;
  if (const std::optional<graph_obstacle> found = obstacle_to_graphs(line)) {
    if (line.graph == graph_choice::automatic) return;
    throw belay::input_error("--graph " + found->flag + ": " + found->why);
  }
  if (line.graph == graph_choice::on || line.trace.empty()) line.run.graphs = belay::graph_use::captured;
}

void expect_graphs_fit(command_line& line) {
  if (line.run.graphs == belay::graph_use::none || line.run.mesh.ranks() == 1 || !line.placed || line.placed->own())
    return;
  if (line.graph != graph_choice::automatic)
    throw belay::input_error("--graph where " + line.placed->text + ": " + shared_devices);
  line.run.graphs = belay::graph_use::none;
}

}  // namespace train_moe
