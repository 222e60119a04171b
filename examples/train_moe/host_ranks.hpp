// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs and rehearsals of the trainer on ranks of the host, for programs that do not see the trainer itself. Which
// trainers a program has is chosen when it is built (BELAY_TRAINERS).
#pragma once

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/run.hpp"
#include "train_moe/prepared_run.hpp"

namespace train_moe {

/// The session of a rank, each by the trainer of one type and of one choice of frozen parts: a compilation unit each.
void run_rank_fp32(prepared_run& prepared, belay::rank& rank, belay::run& run);
void run_rank_bf16(prepared_run& prepared, belay::rank& rank, belay::run& run);
void run_rank_frozen_attention(prepared_run& prepared, belay::rank& rank, belay::run& run);
void run_rank_frozen_experts(prepared_run& prepared, belay::rank& rank, belay::run& run);
void run_rank_frozen_parts(prepared_run& prepared, belay::rank& rank, belay::run& run);

/// The session of a rank by the trainer that the flags name. Throws missing_trainer.
void run_rank(prepared_run& prepared, belay::rank& rank, belay::run& run);

/// The processor that the ranks of a run compute on; before it has seen GPUs, as its flags say.
[[nodiscard]] inline belay::computes_on computes_on_of(const command_line& line) {
  if (line.device != device_kind::cuda) return belay::computes_on::host;
  const bool own =
      line.placed ? line.placed->own() : line.devices == device_choice::own || line.backend != backend_kind::threads;
  return own ? belay::computes_on::own_device : belay::computes_on::device;
}

/// The plan of what all ranks will do, and of what those on GPUs will communicate over. Throws missing_trainer.
[[nodiscard]] belay::rehearsal_result rehearsed(prepared_run& rest);

/// Runs what was planned on every rank of `world`; each calls `begin` first.
template <class World>
void run_on(World&& world, prepared_run& prepared, void (*begin)() = [] {}) {
  const auto body = [&](belay::rank& rank, belay::run& run) {
    if (!run.rehearsing()) begin();
    run_rank(prepared, rank, run);
  };
  belay::launch(world, body, prepared.plan, launch_options_of(prepared.line.run));
}

/// Runs what was planned as this process's rank of a world that mpirun has started. Throws belay::input_error where the
/// program was built without MPI.
void run_mpi_session(prepared_run& prepared);

}  // namespace train_moe
