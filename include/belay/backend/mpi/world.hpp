// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are the processes of an MPI job, on one machine or on many. Each process runs the body once,
// as its rank; when a rank fails, the waits of the others end with the cause.
//
//   int main() {
//     belay::mpi::world world;
//     world.run([](belay::mpi::rank& rank) { rank.world().barrier(); });
//   }
#pragma once

#include <mpi.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/backend/mpi/progress/mpi_progress.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/backend/mpi/rank.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// How long a rank waits, how long a peer may be stopped, and the communicator whose ranks these are.
struct world_options {
  /// How long a rank waits for its peers; zero: BELAY_TIMEOUT of the environment in seconds, else 600 s.
  std::chrono::duration<double> timeout{0};
  /// How long a peer of this machine may be found stopped until it counts as failed.
  std::chrono::duration<double> stall{30};
  /// The ranks: those of this communicator, which stays the program's own. It must not be freed before the last run.
  MPI_Comm communicator = MPI_COMM_WORLD;
  /// By which this rank measures how long it waits; null: the machine's clock. It outlives the world's groups.
  const time_source* clock = nullptr;
};

/// `world w; w.run(body)` calls `body(rank&)` in this process. Initialises MPI unless the program has.
class world {
 public:
  /// Throws `usage_error` where MPI provides less than MPI_THREAD_MULTIPLE, `input_error` if BELAY_TIMEOUT makes no
  /// sense.
  explicit world(world_options options = {}, where at = where::current());

  /// This process's rank and the number of all.
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// The promises of its groups, for a rehearsal.
  [[nodiscard]] static constexpr group_traits promises() noexcept { return traits_of<mpi::group>(); }

  /// Runs the body as this process's rank and returns its result when all ranks have left theirs. If it throws, the
  /// others' waits end with `comm_error`, and what it threw is thrown from here. All ranks of the communicator call
  /// it. Where the world initialised MPI this also finalises it, within ten seconds (or the timeout, if that is less)
  /// or by aborting the job with a line that says so, and the world has been run; where the program did, a world can be
  /// run again. A world whose rank died does not finalise, since MPI_Finalize would wait for it.
  template <class Body>
  auto run(Body&& body, where at = where::current()) {
    using result = std::invoke_result_t<Body&, rank&>;
    if constexpr (std::is_void_v<result>) {
      run_rank([&](rank& self) { body(self); }, at);
    } else {
      std::optional<result> out;
      run_rank([&](rank& self) { out.emplace(body(self)); }, at);
      return std::move(*out);
    }
  }

  /// Runs the body as this process's rank, a `belay::rank`: what `launch` does.
  void run_ranks(function_ref<void(belay::rank&)> body, where at = where::current());

 private:
  void run_rank(function_ref<void(rank&)> body, where at);

  world_options options_;
  std::optional<mpi_runtime> runtime_;
  int number_ = 0;
  int size_ = 1;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/mpi/world.ipp"  // IWYU pragma: export
#else
namespace belay::inline BELAY_ABI {
extern template class async_stream<mpi::mpi_progress>;
extern template class basic_group<mpi::group, mpi::collectives>;
extern template class typed_group<mpi::group>;
extern template class typed_rank<mpi::rank>;
}  // namespace belay::inline BELAY_ABI
#endif
