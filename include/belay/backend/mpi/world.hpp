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
};

/// `world w; w.run(body)` calls `body(rank&)` in this process. Initialises MPI unless the program has.
class world {
 public:
  /// Throws `usage_error` where MPI provides less than MPI_THREAD_MULTIPLE, `input_error` if BELAY_TIMEOUT makes no
  /// sense.
  explicit world(world_options options = {}, where at = where::current()) : options_(options) {
    if (options_.timeout.count() == 0) options_.timeout = std::chrono::duration<double>(timeout_of_environment());
    static_cast<void>(checked_timeout(options_.timeout, at));
    static_cast<void>(checked_timeout(options_.stall, at));
    runtime_.emplace(at);
    MPI_Comm_rank(options_.communicator, &number_);
    MPI_Comm_size(options_.communicator, &size_);
  }

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
  void run_ranks(function_ref<void(belay::rank&)> body, where at = where::current()) {
    const auto as_rank = [&](rank& self) {
      belay::rank of_body(self);
      body(of_body);
    };
    run_rank(as_rank, at);
  }

 private:
  template <class Body>
  void run_rank(Body body, where at) {
    if (runtime_->finalised()) throw usage_error("this world has been run, and MPI is finalised", at);
    const time_limits limits{checked_timeout(options_.timeout, at), checked_timeout(options_.stall, at)};
    const auto progress = std::make_shared<mpi_progress>(options_.communicator, limits, at);
    std::exception_ptr failure;
    try {
      rank self(progress);
      try {
        body(self);
      } catch (...) {
        failure = std::current_exception();
        if (progress->home()->here()) abort(*progress, text_of(failure), kind_of(failure));
      }
      if (!progress->home()->here()) end_forked_child(number_, text_of(failure).c_str());
      progress->post_exit(lane::caller);
      self.finish();
      progress->post_exit(lane::stream);
      progress->close({operation::none, 0, 0, 0, at});
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    progress->reporter().report_at_exit();
    if (!progress->process_gone()) {
      const auto limit = lesser_of<clock::duration>(limits.timeout, std::chrono::seconds(10));
      runtime_->finalise(limit, text_of(failure), [&] { progress->reporter().report_now(); });
    }
    progress->end();
    if (failure) std::rethrow_exception(failure);
  }

  static std::string text_of(const std::exception_ptr& failure) {
    if (!failure) return {};
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& problem) {
      return printable_what(problem);
    } catch (...) {
      return "an exception that is no std::exception";
    }
  }

  static error_kind kind_of(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& problem) {
      return belay::kind_of(problem);
    } catch (...) {
      return error_kind::other;
    }
  }

  static void abort(mpi_progress& progress, const std::string& what, error_kind kind) {
    const flight_record last = progress.recorder(lane::caller).last();
    abort_cause why{comm_fault::peer_failed,
                    {progress.number()},
                    "rank " + std::to_string(progress.number()) + " threw " + last.text() + ": " + what,
                    last.site};
    why.thrown = kind;
    progress.abort(std::move(why));
  }

  world_options options_;
  std::optional<mpi_runtime> runtime_;
  int number_ = 0;
  int size_ = 1;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
