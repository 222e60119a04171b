// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What computes, which GPUs ranks have, and what a run on GPUs cannot have.
#pragma once

#include <cstdint>
#include <string>

#include "belay/backend/cuda/device.hpp"
#include "belay/backend/cuda/device_api.hpp"
#include "belay/comm/launcher.hpp"

namespace train_moe {

struct command_line;

/// The processor that computes: this one, or GPUs.
enum class device_kind : std::uint8_t { host, cuda };

[[nodiscard]] constexpr const char* name(device_kind which) noexcept {
  return which == device_kind::cuda ? "cuda" : "host";
}

/// Which GPUs ranks shall have: one each, one for all, or what there is.
enum class device_choice : std::uint8_t { automatic, own, shared };

/// As the flag --devices names it, of what it knows.
[[nodiscard]] device_choice device_choice_of(const std::string& text);

/// Whether a program is built with NCCL, over which ranks with a GPU each communicate.
enum class nccl_support : std::uint8_t { absent, compiled };

/// Which GPUs the ranks of a run have, and a line for people.
struct device_placement {
  belay::cuda::rank_devices which = belay::cuda::rank_devices::one_shared;
  std::string text;

  [[nodiscard]] bool own() const noexcept { return which == belay::cuda::rank_devices::one_each; }
};

/// Of ranks that are threads of a process that sees so many GPUs. Throws belay::input_error where they shall have one
/// each and there are fewer, and belay::backend_error where they shall and the program has no NCCL.
[[nodiscard]] device_placement placed_threads(device_choice chosen, int ranks, int devices, nccl_support nccl);
/// Of ranks that are processes: each takes the GPU of its number among the ranks of its machine. Throws
/// belay::backend_error where the program has no NCCL.
[[nodiscard]] device_placement placed_processes(nccl_support nccl);
/// That of a process that was launched as one rank, of whose machine it sees so many GPUs. Throws
/// belay::input_error where all ranks are on this machine and it has fewer: each of them alike, before they meet.
[[nodiscard]] device_placement placed_processes(nccl_support nccl, const belay::launcher_environment& launched,
                                                int devices);

/// Throws belay::input_error, with the flag, for what a run with --device cuda cannot have, and for --devices without
/// it.
void expect_devices_fit(const command_line& line);
/// Whether steps shall be captured as graphs: where that is possible, always, or never.
enum class graph_choice : std::uint8_t { automatic, on, off };

/// As the flag --graph names it, of what it knows.
[[nodiscard]] graph_choice graph_choice_of(const std::string& text);

/// Whether steps are captured as graphs, by the flags. Throws belay::input_error, with the flag, for a run that shall
/// and cannot have that.
void choose_graphs(command_line& line);
/// Whether they are, when it has seen which GPUs the ranks have. Throws belay::input_error alike.
void expect_graphs_fit(command_line& line);

}  // namespace train_moe
