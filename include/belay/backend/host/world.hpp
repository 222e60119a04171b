// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are threads of this process. It needs nothing installed and nothing launched, peers'
// memory is directly addressable, and when a rank fails the others are told instead of left waiting.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/run_rank.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/launched.hpp"
#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// `world{4}.run(body)` calls `body(rank&)` on four threads, each a rank. Can be run again.
class world {
 public:
  /// Throws `usage_error` if there is no rank, `input_error` if BELAY_TIMEOUT makes no sense.
  explicit world(int ranks, world_options options = {}, where at = where::current())
      : ranks_(ranks), options_(checked_options(options, at)) {
    if (ranks < 1) throw usage_error("a world of " + std::to_string(ranks) + " ranks", at);
  }

  /// The world that this process was started in as one rank: by belay-run, torchrun, Open MPI's mpirun, a PMI or
  /// Slurm (see launch.hpp for who is believed). Without any of them a world of one rank.
  [[nodiscard]] static launched_world from_env(world_options options = {}, where at = where::current()) {
    return launched_world(options, at);
  }

  [[nodiscard]] int size() const noexcept { return ranks_; }

  /// Runs the body on every rank and returns when all have returned: nothing, or the bodies' results by rank.
  /// If a rank failed, its peers' waits end with `comm_error`, and the first cause is thrown from here after
  /// all threads have joined. Where BELAY_FLIGHT_DIR is set, a flight file is written and the verdict printed.
  template <class Body>
  auto run(Body&& body) const {
    using result = std::invoke_result_t<Body&, rank&>;
    if constexpr (std::is_void_v<result>) {
      run_threads([&](rank& self, int) { body(self); });
    } else {
      std::vector<std::optional<result>> slots(static_cast<std::size_t>(ranks_));
      run_threads([&](rank& self, int number) { slots[static_cast<std::size_t>(number)].emplace(body(self)); });
      std::vector<result> results;
      results.reserve(slots.size());
      for (auto& slot : slots) results.push_back(std::move(*slot));
      return results;
    }
  }

 private:
  template <class Body>
  void run_threads(Body body) const {
    const auto members = std::make_shared<thread_membership>(ranks_, options_);
    std::vector<run_result> ends(static_cast<std::size_t>(ranks_));
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    try {
      for (int number = 0; number < ranks_; ++number) {
        threads.emplace_back([&, number] {
          if (options_.pin == pinning::one_core_each) pin_to_core(number);
          ends[static_cast<std::size_t>(number)] =
              live(members->enter(number), members, [&](rank& self) { body(self, number); });
        });
      }
    } catch (...) {  // the system has no more threads
      world_status(members->first())
          .abort({comm_fault::peer_failed, {static_cast<int>(threads.size())}, "its thread could not be started", ""});
      for (std::thread& thread : threads) thread.join();
      throw;
    }
    for (std::thread& thread : threads) thread.join();
    members->end();
    // The exception of the rank that stopped the world, or else the first rank's.
    for (const run_result& end : ends) {
      if (end.stopped_the_world) std::rethrow_exception(end.error);
    }
    for (const run_result& end : ends) {
      if (end.error) std::rethrow_exception(end.error);
    }
  }

  int ranks_;
  world_options options_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
