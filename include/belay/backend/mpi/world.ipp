// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a process becomes a rank of a world under MPI, and how it leaves it.
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
#include "belay/backend/mpi/world.hpp"
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

// The exception that ended a body, in words and by its kind.
inline std::string text_of(const std::exception_ptr& failure) {
  if (!failure) return {};
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& problem) {
    return printable_what(problem);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

inline error_kind kind_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& problem) {
    return belay::kind_of(problem);
  } catch (...) {
    return error_kind::other;
  }
}

inline void abort_with(mpi_progress& progress, const std::string& what, error_kind kind) {
  const flight_record last = progress.recorder(lane::caller).last();
  abort_cause why{comm_fault::peer_failed,
                  {progress.number()},
                  "rank " + std::to_string(progress.number()) + " threw " + last.text() + ": " + what,
                  last.site};
  why.thrown = kind;
  progress.abort(std::move(why));
}

BELAY_DECL world::world(world_options options, where at) : options_(options) {
  if (options_.timeout.count() == 0) options_.timeout = std::chrono::duration<double>(timeout_of_environment());
  static_cast<void>(checked_timeout(options_.timeout, at));
  static_cast<void>(checked_timeout(options_.stall, at));
  runtime_.emplace(at);
  MPI_Comm_rank(options_.communicator, &number_);
  MPI_Comm_size(options_.communicator, &size_);
}

BELAY_DECL void world::run_rank(function_ref<void(rank&)> body, where at) {
  if (runtime_->finalised()) throw usage_error("this world has been run, and MPI is finalised", at);
  const time_limits limits{checked_timeout(options_.timeout, at), checked_timeout(options_.stall, at), options_.clock};
  const auto progress = std::make_shared<mpi_progress>(options_.communicator, limits, at);
  std::exception_ptr failure;
  try {
    rank self(progress);
    try {
      body(self);
    } catch (...) {
      failure = std::current_exception();
      if (progress->home()->here()) abort_with(*progress, text_of(failure), kind_of(failure));
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

BELAY_DECL void world::run_ranks(function_ref<void(belay::rank&)> body, where at) {
  const auto as_rank = [&](rank& self) {
    belay::rank of_body(self);
    body(of_body);
  };
  run_rank(as_rank, at);
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
