// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The trainer over ranks of the host backend, and its rehearsal. They are compiled once, in
// host_trainer*.cpp, for the program and for the tests of whole trainings. A test that needs double compiles its own.
#pragma once

#include "belay/backend/host.hpp"
#include "belay/train/launch.hpp"
#include "model/products.hpp"
#include "train_moe/rank_session.hpp"

namespace train_moe {

using host_run = belay::run<belay::rank, belay::engine<belay::host_pages, model::host_kit>>;

template <class T>
using host_trainer = trainer<T, belay::rank, host_run>;

// Each choice of type and frozen parts is a compilation unit, for runs and rehearsals.
extern template class trainer<float, belay::rank, host_run>;
extern template class trainer<belay::bf16, belay::rank, host_run>;
extern template class trainer<float, belay::rank, host_run, model::freezes_attention>;
extern template class trainer<float, belay::rank, host_run, model::freezes_experts>;
extern template class trainer<float, belay::rank, host_run, model::freezes_parts>;
extern template void run_rank_as<float>(prepared_run&, belay::rank&, host_run&);
extern template void run_rank_as<belay::bf16>(prepared_run&, belay::rank&, host_run&);
extern template void run_rank_as<float, model::freezes_attention>(prepared_run&, belay::rank&, host_run&);
extern template void run_rank_as<float, model::freezes_experts>(prepared_run&, belay::rank&, host_run&);
extern template void run_rank_as<float, model::freezes_parts>(prepared_run&, belay::rank&, host_run&);

/// What the ranks of a run compute on; before it has seen GPUs, as its flags say.
[[nodiscard]] inline belay::computes_on computes_on_of(const command_line& line) {
  if (line.device != device_kind::cuda) return belay::computes_on::host;
  const bool own =
      line.placed ? line.placed->own() : line.devices == device_choice::own || line.backend != backend_kind::threads;
  return own ? belay::computes_on::own_device : belay::computes_on::device;
}

/// The plan of what all ranks will do.
[[nodiscard]] inline belay::rehearsal_result rehearsed(prepared_run& rest) {
  const auto body = [&](auto& rank, auto& run) { run_rank(rest, rank, run); };
  return belay::rehearse<model::host_kit>(static_cast<int>(rest.line.run.mesh.ranks()), body,
                                          computes_on_of(rest.line));
}

/// Runs what was planned on every rank of `world`; each calls `begin` first.
template <class World>
void run_on(
    World&& world, prepared_run& prepared, void (*begin)() = [] {}) {
  const auto body = [&](auto& rank, auto& run) {
    if (!run.rehearsing()) begin();
    run_rank(prepared, rank, run);
  };
  belay::launch<model::host_kit>(world, body, prepared.plan, launch_options_of(prepared.line.run));
}

/// The same for this process's rank of a world that mpirun has started. Throws belay::input_error where the program was
/// built without MPI.
void run_mpi_session(prepared_run& prepared);

}  // namespace train_moe
