// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are threads of this process. It needs nothing installed and nothing launched, peers'
// memory is directly addressable, and when a rank fails the others are told instead of left waiting.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host/control.hpp"
#include "belay/backend/host/flight_file.hpp"
#include "belay/backend/host/health.hpp"
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
  // How each rank ended; the exception to throw is the one of the rank that stopped the world, or else the
  // first rank's.
  struct outcome {
    std::mutex mutex;
    std::exception_ptr first;
    std::vector<std::exception_ptr> by_rank;
    bool reported = false;
  };

  template <class Body>
  void run_threads(Body body) const {
    const control_shape shape = shape_of(ranks_, address_space::one, options_);
    const anonymous_memory memory(control::bytes_for(shape));
    const control shared = control::make(memory.data(), shape);
    outcome end;
    end.by_rank.resize(static_cast<std::size_t>(ranks_));
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    try {
      for (int number = 0; number < ranks_; ++number) {
        threads.emplace_back([&, number] { live(shared, number, body, end); });
      }
    } catch (...) {  // the system has no more threads
      health(shared).stop(
          {comm_fault::peer_failed, {static_cast<int>(threads.size())}, "its thread could not be started", ""});
      for (std::thread& thread : threads) thread.join();
      throw;
    }
    for (std::thread& thread : threads) thread.join();
    if (end.first) std::rethrow_exception(end.first);
    for (const std::exception_ptr& error : end.by_rank) {
      if (error) std::rethrow_exception(error);
    }
  }

  template <class Body>
  void live(control shared, int number, Body& body, outcome& end) const {
    if (options_.pin == pinning::one_core_each) pin_to_core(number);
    const auto mine = std::make_shared<health>(shared);
    mine->arrive(number, 0, core_set::allowed(), options_.spins);
    std::optional<rank> self;
    try {
      self.emplace(mine, std::make_shared<thread_regions>(), number);
      body(*self, number);
    } catch (const std::exception& problem) {
      fail(*mine, number, problem.what(), end);
    } catch (...) {
      fail(*mine, number, "an exception that is no std::exception", end);
    }
    report(*mine, end);
    mine->leave(number, lane::caller);
    if (self) self->finish();
    report(*mine, end);
    mine->leave(number, lane::stream);
  }

  static void fail(health& shared, int number, const char* what, outcome& end) {
    const std::lock_guard lock(end.mutex);
    const std::exception_ptr error = std::current_exception();
    end.by_rank[static_cast<std::size_t>(number)] = error;
    if (shared.stop(thrown_by(shared, number, what))) end.first = error;
  }

  // By the first rank that comes out of a failed run, while the others are where they are: one may never come out.
  static void report(const health& shared, outcome& end) {
    if (!shared.stopped()) return;
    const std::lock_guard lock(end.mutex);
    if (!std::exchange(end.reported, true)) report_failure(shared);
  }

  int ranks_;
  world_options options_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
