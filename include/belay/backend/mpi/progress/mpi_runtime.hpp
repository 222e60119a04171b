// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The MPI library itself: errors are returned and become exceptions here, requests are polled with a deadline, and
// an initialisation has an end that cannot hang.
#pragma once

#include <mpi.h>
#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
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
  /// The rank of the world it was about; -1 where none.
  [[nodiscard]] int peer() const noexcept { return peer_; }

 private:
  std::string message_;
  int peer_;
};

inline void expect(int code, const char* call, int peer = -1) {
  if (code != MPI_SUCCESS) throw mpi_error(call, code, peer);
}

inline void nap(std::chrono::nanoseconds time) noexcept {
  const timespec time_point{static_cast<time_t>(time.count() / 1'000'000'000),
                            static_cast<long>(time.count() % 1'000'000'000)};
  ::nanosleep(&time_point, nullptr);
}

/// A limit in seconds as the clock counts them. Throws usage_error for none.
[[nodiscard]] inline clock::duration checked_timeout(std::chrono::duration<double> limit, where at) {
  if (!(limit.count() > 0)) throw usage_error("a timeout is more than 0 seconds", at);
  const std::chrono::duration<double> longest = std::chrono::hours(24 * 365);  // more is no deadline on any clock
  return std::chrono::duration_cast<clock::duration>(limit < longest ? limit : longest);
}

/// Waits for a request of a start-up call that all ranks make; throws `comm_error` (timeout) at the deadline.
inline void finish_request(MPI_Request& request, clock::duration timeout, const char* what, where at) {
  const auto start = clock::now();
  for (int looks = 0;; ++looks) {
    int done = 0;
    expect(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) return;
    if (looks < 100) continue;
    nap(std::chrono::microseconds(50));
    if (clock::now() - start < timeout) continue;
    comm_error::details late;
    late.fault = comm_fault::timeout;
    late.operation = what;
    late.message = "not all ranks of the communicator have come within " +
                   std::to_string(std::chrono::duration<double>(timeout).count()) + " s";
    late.here = at;
    late.seconds_waited = std::chrono::duration<double>(clock::now() - start).count();
    throw comm_error(std::move(late));
  }
}

/// Initialises MPI unless the program has. What it initialised it finalises when it is told to; the destructor does
/// not, because finalising waits for peers.
class mpi_runtime {
 public:
  explicit mpi_runtime(where at) {
    int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised != 0) throw usage_error("MPI was finalised and cannot be started again in this process", at);
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

  /// Whether MPI was finalised here.
  [[nodiscard]] bool is_over() const noexcept { return over_; }

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
  /// `limit`, prints that, after `report` (what else there is to tell, may be empty), and aborts the job, after
  /// `before_abort()`.
  void finalise(clock::duration limit, const std::string& report, const std::function<void()>& before_abort) {
    if (!owns_ || over_) return;
    over_ = true;
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
  bool over_ = false;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
