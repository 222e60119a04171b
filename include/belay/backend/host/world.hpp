// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are threads of this process. It needs nothing installed and nothing launched, the memory of
// peers is directly addressable, and when a rank fails the others' waits end with the cause.
//
//   belay::host::world(4).run([](belay::host::rank& rank) {
//     std::vector<float> gradients(1000, 1.0f);
//     rank.world().all_reduce(std::span(gradients), belay::sum);
//   });
#pragma once

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host/launched.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// `world(4).run(body)` calls `body(rank&)` on four threads, each a rank. Can be run again.
class world {
 public:
  /// Ranks share an address space.
  static constexpr bool ranks_are_threads = true;

  /// Throws `usage_error` if there is no rank, `input_error` if BELAY_TIMEOUT makes no sense.
  explicit world(int ranks, world_options options = {}, where at = where::current());

  /// The world that this process was started in as one rank: by belay-run, torchrun, Open MPI's mpirun, a PMI or
  /// Slurm (launch.hpp says in which order). Without any of them a world of one rank.
  [[nodiscard]] static launched_world from_env(world_options options = {}, where at = where::current()) {
    return launched_world(options, at);
  }

  /// The number of ranks.
  [[nodiscard]] int size() const noexcept { return ranks_; }

  /// Runs the body on every rank and returns when all have returned: nothing, or the bodies' results by rank.
  /// If a rank failed, its peers' waits end with `comm_error`, and the first cause is thrown from here after
  /// all threads have joined. Where BELAY_FLIGHT_DIR is set, a flight file is written and the verdict printed.
  template <class Body>
  auto run(Body&& body) const {
    using result = std::invoke_result_t<Body&, rank&>;
    if constexpr (std::is_void_v<result>) {
      run_threads([&](rank& self) { body(self); });
    } else {
      std::vector<std::optional<result>> outcomes(static_cast<std::size_t>(ranks_));
      run_threads([&](rank& self) { outcomes[static_cast<std::size_t>(self.number())].emplace(body(self)); });
      std::vector<result> results;
      results.reserve(outcomes.size());
      for (auto& slot : outcomes) results.push_back(std::move(*slot));
      return results;
    }
  }

  /// Runs the body on every rank, as `belay::rank`: what `launch` does.
  void run_ranks(function_ref<void(belay::rank&)> body, where at = where::current()) const;

 private:
  void run_threads(function_ref<void(rank&)> body) const;

  int ranks_;
  world_options options_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/world.ipp"  // IWYU pragma: export
#endif
