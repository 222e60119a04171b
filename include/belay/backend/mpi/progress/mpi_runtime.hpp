// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The MPI library itself: error codes become exceptions here, requests of the start are polled with a deadline, and
// finalising cannot hang.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

using clock = std::chrono::steady_clock;

/// A call of the MPI library that failed. Does not leave the backend: an operation turns it into a comm_error.
class mpi_error : public std::exception {
 public:
  mpi_error(const char* call, int code, int peer = -1) : peer_(peer) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
    message_ = std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length));
  }

  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }
  /// The rank of the world that the call was about; -1 where none.
  [[nodiscard]] int peer() const noexcept { return peer_; }

 private:
  std::string message_;
  int peer_;
};

inline void expect(int code, const char* call, int peer = -1) {
  if (code != MPI_SUCCESS) throw mpi_error(call, code, peer);
}

inline void nap(std::chrono::nanoseconds time) noexcept {
  const timespec length{static_cast<time_t>(time.count() / 1'000'000'000),
                        static_cast<long>(time.count() % 1'000'000'000)};
  ::nanosleep(&length, nullptr);
}

/// Waits for a request of a start-up call that all ranks make; throws `comm_error` (timeout) at the deadline, which is
/// by `time`.
inline void finish_request(MPI_Request& request, clock::duration timeout, const time_source* time, const char* what,
                           where at) {
  const auto start = time_by(time);
  for (int polls = 0;; ++polls) {
    int done = 0;
    expect(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    if (polls < 100) continue;
    nap(std::chrono::microseconds(50));
    if (time_by(time) - start < timeout) continue;
    comm_error::details late;
    late.fault = comm_fault::timeout;
    late.operation = what;
    late.message = "not all ranks of the communicator have come within " +
                   std::to_string(std::chrono::duration<double>(timeout).count()) + " s";
    late.here = at;
    late.seconds_waited = std::chrono::duration<double>(time_by(time) - start).count();
    throw comm_error(std::move(late));
  }
}

/// Initialises MPI unless the program has. What it initialised, `finalise` finalises; the destructor does not, because
/// finalising waits for peers.
class mpi_runtime {
 public:
  explicit mpi_runtime(where at) {
    int initialised = 0, over = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialised);
    MPI_Finalized(&over);
    if (over != 0) throw usage_error("MPI was finalised and cannot be started again in this process", at);
    if (initialised == 0) {
      if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
        throw input_error("MPI could not be initialised", at);
      }
      owns_ = true;
      MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
      MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    } else {
      MPI_Query_thread(&level);
    }
    expect_level(level, at);
  }
  mpi_runtime(const mpi_runtime&) = delete;
  mpi_runtime& operator=(const mpi_runtime&) = delete;

  /// Whether this finalised MPI.
  [[nodiscard]] bool finalised() const noexcept { return finalised_; }

  /// Throws `usage_error` where MPI's threads may not all call it: started operations run on a thread of their own.
  static void expect_level(int level, where at) {
    if (level >= MPI_THREAD_MULTIPLE) return;
    const char* const name = level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                             : level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                            : "MPI_THREAD_SINGLE";
    throw usage_error(std::string("MPI provides ") + name +
                          "; belay::mpi needs MPI_THREAD_MULTIPLE: call MPI_Init_thread with it, or let "
                          "belay::mpi::world initialise MPI",
                      at);
  }

  /// Finalises what was initialised here. Waits for the other ranks to finalise; where that does not end within
  /// `limit`, prints that, after `report` (may be empty), and aborts the job, after `before_abort()`.
  void finalise(clock::duration limit, const std::string& report, function_ref<void()> before_abort) {
    if (!owns_ || finalised_) return;
    finalised_ = true;
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::thread guard([&] {
      std::unique_lock lock(mutex);
      if (changed.wait_for(lock, limit, [&] { return over; })) return;
      before_abort();
      std::fprintf(stderr,
                   "%s%sbelay: rank %d: MPI_Finalize did not end within %g s, some rank does not take part; "
                   "aborting the job\n",
                   report.c_str(), report.empty() ? "" : "\n", rank, std::chrono::duration<double>(limit).count());
      std::thread([] { MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE); }).detach();
      nap(std::chrono::seconds(3));
      std::_Exit(EXIT_FAILURE);
    });
    MPI_Finalize();
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_all();
    guard.join();
  }

 private:
  bool owns_ = false;
  bool finalised_ = false;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
