// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of ranks that are threads of this process. It needs nothing installed and nothing launched, peers'
// memory is directly addressable, and when a rank fails the others are told instead of left waiting.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host/group_state.hpp"
#include "belay/backend/host/health.hpp"
#include "belay/backend/host/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Whether each rank stays on one core.
enum class pinning { none, one_core_each };

struct world_options {
  /// How long a rank waits for its peers; zero: BELAY_TIMEOUT of the environment in seconds, else 600 s.
  std::chrono::duration<double> timeout{0};
  pinning pin = pinning::none;
};

/// `world{4}.run(body)` calls `body(rank&)` on four threads, each a rank. Can be run again.
class world {
 public:
  /// Throws `usage_error` if there is no rank, `input_error` if BELAY_TIMEOUT makes no sense.
  explicit world(int ranks, world_options options = {}, where at = where::current())
      : ranks_(ranks), options_(options) {
    if (ranks < 1) throw usage_error("a world of " + std::to_string(ranks) + " ranks", at);
    if (options_.timeout.count() == 0) options_.timeout = std::chrono::duration<double>(timeout_of_environment());
    if (!(options_.timeout.count() > 0)) throw usage_error("a world's timeout is more than 0 seconds", at);
  }

  [[nodiscard]] int size() const noexcept { return ranks_; }

  /// Runs the body on every rank and returns when all have returned: nothing, or the bodies' results by rank.
  /// If a rank failed, its peers' waits end with `comm_error`, and the first cause is thrown from here after
  /// all threads have joined.
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
  static double timeout_of_environment() {
    const char* text = std::getenv("BELAY_TIMEOUT");
    if (text == nullptr || *text == '\0') return 600;
    char* end = nullptr;
    const double seconds = std::strtod(text, &end);
    if (*end != '\0' || !(seconds > 0) || !std::isfinite(seconds)) {
      throw input_error("BELAY_TIMEOUT=" + std::string(text) + ": expected seconds, more than 0");
    }
    return seconds;
  }

  [[nodiscard]] static cpu_set_t allowed_cores() noexcept {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_SET(0, &cores);
    return cores;
  }

  // The `number`-th allowed core, round and round.
  static void pin_to_core(int number) noexcept {
    const cpu_set_t cores = allowed_cores();
    int skip = number % CPU_COUNT(&cores);
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &cores) || skip-- > 0) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(core, &one);
      ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
      return;
    }
  }

  // How each rank ended; the exception to throw is the one of the rank that stopped the world, or else the
  // first rank's.
  struct outcome {
    std::mutex mutex;
    std::exception_ptr first;
    std::vector<std::exception_ptr> by_rank;
  };

  template <class Body>
  void run_threads(Body body) const {
    const cpu_set_t cores = allowed_cores();
    // More than this is no deadline on any clock.
    const std::chrono::duration<double> longest = std::chrono::hours(24 * 365);
    const auto limit = options_.timeout < longest ? options_.timeout : longest;
    const auto shared =
        std::make_shared<health>(ranks_, std::chrono::duration_cast<health::clock::duration>(limit), CPU_COUNT(&cores));
    group_registry groups(shared);
    outcome end;
    end.by_rank.resize(static_cast<std::size_t>(ranks_));
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks_));
    try {
      for (int number = 0; number < ranks_; ++number) {
        threads.emplace_back([&, number] { live(shared, groups, number, body, end); });
      }
    } catch (...) {  // the system has no more threads
      shared->stop({comm_fault::peer_failed, {static_cast<int>(threads.size())}, "its thread could not be started", ""});
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
  void live(const std::shared_ptr<health>& shared, group_registry& groups, int number, Body& body, outcome& end) const {
    if (options_.pin == pinning::one_core_each) pin_to_core(number);
    std::optional<rank> self;
    try {
      self.emplace(shared, groups, number);
      body(*self, number);
    } catch (const std::exception& problem) {
      fail(*shared, number, problem.what(), end);
    } catch (...) {
      fail(*shared, number, "an exception that is no std::exception", end);
    }
    shared->leave(number, lane::caller);
    if (self) self->finish();
    shared->leave(number, lane::stream);
  }

  static void fail(health& shared, int number, const char* what, outcome& end) {
    const std::lock_guard lock(end.mutex);
    const std::exception_ptr error = std::current_exception();
    end.by_rank[static_cast<std::size_t>(number)] = error;
    const flight_record last = shared.recorder(number, lane::caller).last();
    const bool first = shared.stop({comm_fault::peer_failed,
                                    {number},
                                    "rank " + std::to_string(number) + " threw " + last.text() + ": " + what,
                                    last.at.line == 0 ? "" : last.at.text()});
    if (first) end.first = error;
  }

  int ranks_;
  world_options options_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
