// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The progress engine of one run of a rank: private communicators, the control channels of both lanes, the out-of-band
// messages, and the one loop in which every wait is spent. The loop polls messages, the clock and the processes of this
// machine, so that no wait outlasts its deadline or misses the failure of a peer.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <mpi.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/flight_report.hpp"
#include "belay/backend/mpi/failure/out_of_band.hpp"
#include "belay/backend/mpi/failure/world_status.hpp"
#include "belay/backend/mpi/progress/control_channel.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// How long ranks wait for each other.
struct time_limits {
  clock::duration timeout = std::chrono::minutes(10);
  /// A peer of this machine that is found stopped for so long has failed.
  clock::duration stall = std::chrono::seconds(30);
};

/// Shared by the threads of one rank.
class mpi_progress {
 public:
  /// Collective over the ranks of `parent`; throws `comm_error` (timeout) if not all come.
  mpi_progress(MPI_Comm parent, time_limits limits, where at) : limits_(limits) {
    expect(MPI_Comm_rank(parent, &number_), "MPI_Comm_rank");
    expect(MPI_Comm_size(parent, &ranks_), "MPI_Comm_size");
    for (MPI_Comm& comm : comms_) {
      MPI_Request made;
      expect(MPI_Comm_idup(parent, &comm, &made), "MPI_Comm_idup");
      finish_request(made, limits_.timeout, "the start of a world", at);
      MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    }
    const rank_info self{process::self(), now_ns()};
    std::vector<rank_info> all(static_cast<std::size_t>(ranks_));
    MPI_Request gathered;
    expect(MPI_Iallgather(&self, sizeof self, MPI_BYTE, all.data(), sizeof self, MPI_BYTE, comms_[2], &gathered),
           "MPI_Iallgather");
    finish_request(gathered, limits_.timeout, "the start of a world", at);
    for (const rank_info& each : all) processes_.push_back(each.identity);
    oversubscribed_ = is_oversubscribed(self.identity);
    reporter_ = std::make_unique<flight_reporter>(status_, processes_, number_, all.front().now);
    for (lane which : all_lanes) {
      channels_[index(which)] = std::make_unique<control_channel>(comms_[index(which)], ranks_, status_.history(which));
    }
    out_of_band_ = std::make_unique<out_of_band>(comms_[2], ranks_, number_, status_);
  }
  mpi_progress(const mpi_progress&) = delete;
  mpi_progress& operator=(const mpi_progress&) = delete;

  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] control_channel& channel(lane which) noexcept { return *channels_[index(which)]; }
  [[nodiscard]] flight_recorder<>& recorder(lane which) noexcept { return status_.recorder(which); }

  /// The rank's process.
  [[nodiscard]] const std::shared_ptr<const own_process>& home() const noexcept { return home_; }

  [[nodiscard]] bool aborted() const noexcept { return status_.aborted(); }
  /// Takes what others have sent of it, where this thread waits in no operation.
  void look_for_abort() noexcept {
    try {
      if (!aborted()) out_of_band_->poll();
    } catch (const std::exception&) {
      // The next operation meets it too, and says where.
    }
  }
  /// Throws the first cause, once the flight file is written. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    reporter_->print();
    status_.raise(mine, seconds_waited);
  }
  [[nodiscard]] flight_reporter& reporter() noexcept { return *reporter_; }

  /// For the recorder: this lane enters an operation, and is through.
  void enter(lane which, const call_site& call) noexcept {
    slept_us_[index(which)] = 0;
    recorder(which).enter(call.what, call.group, call.number, call.bytes, call.at.file, call.at.line);
  }
  void finish(lane which) noexcept { recorder(which).finish(slept_us_[index(which)]); }
  /// Whether it stopped because a process is gone: then no wait for all of them ends.
  [[nodiscard]] bool process_gone() const { return status_.process_gone(); }

  /// Stops the world, unless it has stopped, and sends the cause to the others; true when `why` became the first one.
  bool abort(abort_cause why) {
    if (!status_.abort(why)) return false;
    aborted_here_.store(true, std::memory_order_release);
    out_of_band_->send_abort(why);
    return true;
  }

  /// The run is over: later calls fail at once.
  void end() { status_.abort({comm_fault::revoked, {}, "the run of this world is over", ""}); }

  /// How long a call waits for peers, unless it says otherwise.
  [[nodiscard]] clock::duration timeout() const noexcept { return limits_.timeout; }

  /// How long the two threads of this rank wait for each other before they sleep.
  [[nodiscard]] spin_policy before_sleep(lane which) const noexcept {
    if (oversubscribed_) return {4, 0};
    return {which == lane::caller ? 400 : 40, 0};
  }

  /// Runs part of an operation; a failure of the MPI library stops the world.
  template <class Work>
  void guarded(const call_site& call, Work work) {
    try {
      work();
    } catch (const mpi_error& problem) {
      abort_cause why{comm_fault::peer_failed, {}, problem.what(), ""};
      why.culprits.push_back(problem.peer() >= 0 ? problem.peer() : number_);
      abort(std::move(why));
      raise(call);
    }
  }

  /// Returns when `done()`, and throws `comm_error` when the world stops, an awaited rank has exited or died, or
  /// `limit` has passed. `awaited(tell)` calls `tell(rank, owes)` for each rank that is still awaited; `owes`
  /// false: the rank has posted all it owes, and may exit.
  template <class Done, class Awaited>
  void await(lane which, const call_site& call, clock::duration limit, Done done, Awaited awaited) {
    guarded(call, [&] { wait(which, call, limit, done, awaited); });
  }

  /// Posts this lane's exit message to all ranks, once: the lane posts no more.
  void post_exit(lane which) noexcept {
    if (std::exchange(has_left_[index(which)], true)) return;
    try {
      using status = control_message::exit_status;
      const control_message last =
          control_message::exit_message(recorder(which).last(), aborted() ? status::aborted : status::returned);
      for (int rank = 0; rank < ranks_; ++rank) {
        if (rank != number_) channel(which).post(rank, last);
      }
    } catch (const std::exception&) {
      // Ranks that wait for this one have their deadline.
    }
  }

  /// Waits until all ranks have left both lanes; then no message is in transit and the communicators are freed. A world
  /// that has stopped keeps them: late messages of it must not be taken for those of another. There is no deadline,
  /// since a rank may go on without this one; one that dies or hangs in an operation ends the wait.
  void close(const call_site& call) {
    for (lane which : all_lanes) {
      if (aborted()) return;
      const auto remaining = [&](auto tell) {
        for (int rank = 0; rank < ranks_; ++rank) {
          if (rank != number_ && !channel(which).exited(rank)) tell(rank, true);
        }
      };
      const auto all_exited = [&] {
        int missing = 0;
        remaining([&](int, bool) { ++missing; });
        return missing == 0 && channel(which).drained();
      };
      try {
        guarded(call, [&] { wait(which, call, largest_value<clock::duration>, all_exited, remaining); });
      } catch (const comm_error&) {
        // A world that others have stopped is their error; this rank's body has returned.
        if (aborted_here_.load(std::memory_order_acquire)) throw;
        return;
      }
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      for (lane which : all_lanes) {
        if (rank != number_ && !channel(which).returned(rank)) return;  // the cause of its abort is in transit
      }
    }
    if (aborted() || !out_of_band_->drained()) return;
    for (MPI_Comm& comm : comms_) MPI_Comm_free(&comm);
  }

 private:
  static constexpr auto slice = std::chrono::milliseconds(50);

  // What ranks first gather of each other. The time of rank 0 is the job's number.
  struct rank_info {
    process identity;
    std::uint64_t now = 0;
  };
  [[nodiscard]] static std::uint64_t now_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
  }

  // Whether a rank that polls without pause keeps another from running.
  [[nodiscard]] bool is_oversubscribed(const process& self) const noexcept {
    std::ptrdiff_t neighbours = 0, beside = 0;
    for (const process& other : processes_) {
      if (other.machine == 0 || other.machine != self.machine) continue;
      ++neighbours;
      if (self.core >= 0 && other.core == self.core) ++beside;
    }
    return neighbours > greater_of<std::ptrdiff_t>(1, ::sysconf(_SC_NPROCESSORS_ONLN)) || beside > 1;
  }

  template <class Done, class Awaited>
  void wait(lane which, const call_site& call, clock::duration timeout, Done done, Awaited awaited) {
    int polls = 0;
    const int spins = oversubscribed_ ? 0 : 2000;
    const auto poll = [&] {
      channel(which).poll();
      if (done()) return true;
      if (polls++ % 16 == 0) out_of_band_->poll();
      if (!aborted()) return false;
      await_late_messages(which, call, done, awaited);
      return true;
    };
    while (polls < spins) {
      if (poll()) return;
    }
    // From here on the core is given away between polls, for longer and longer.
    for (int i = 0; i < 100; ++i) {
      if (poll()) return;
      ::sched_yield();
    }
    const auto start = clock::now();
    if (call.what != operation::none) recorder(which).wait_from(flight_microseconds(start));
    auto next_inspection = start + slice;
    auto pause = std::chrono::microseconds(20);
    clock::time_point stalled_since{};
    bool asked = false;
    const auto grace = lesser_of<clock::duration>(timeout / 4, std::chrono::milliseconds(500));
    while (true) {
      polls = 0;
      if (poll()) {
        slept_us_[index(which)] += flight_microseconds(clock::now()) - flight_microseconds(start) + 1;
        return;
      }
      expect_not_exited(which, call, awaited, start);
      const auto now = clock::now();
      if (now >= next_inspection) {
        next_inspection = now + slice;
        inspect(which, call, awaited, now, stalled_since);
      }
      if (!asked && now - start >= timeout - grace) {
        asked = true;
        awaited([&](int rank, bool) { out_of_band_->ask(rank, which); });
      }
      if (now - start >= timeout) time_out(which, call, timeout, awaited, start);
      nap(pause);
      pause = lesser_of(pause + pause / 8 + std::chrono::microseconds(1), std::chrono::microseconds(1000));
    }
  }

  // The world has stopped, but that message and those of the lane are not ordered: what all ranks entered before may
  // still be in transit. Returns when `done()`; throws when the awaited ranks have posted their last message, or after
  // a time slice.
  template <class Done, class Awaited>
  void await_late_messages(lane which, const call_site& call, Done done, Awaited awaited) {
    post_exit(which);
    const auto until = clock::now() + slice;
    bool may_come = true;
    while (may_come && clock::now() < until) {
      channel(which).poll();
      if (done()) return;
      may_come = false;
      awaited([&](int rank, bool) { may_come = may_come || !channel(which).exited(rank); });
      if (may_come) nap(std::chrono::microseconds(20));
    }
    raise(call);
  }

  // Ends a wait in the first cause, which is `why` where there is none yet.
  [[noreturn]] void fail(lane which, const call_site& call, abort_cause why, double waited) {
    abort(std::move(why));
    post_exit(which);
    raise(call, waited);
  }

  static double seconds(clock::duration time) noexcept { return std::chrono::duration<double>(time).count(); }

  [[nodiscard]] process_state state_of(int rank) const noexcept {
    return processes_[static_cast<std::size_t>(rank)].state_seen_from(processes_[static_cast<std::size_t>(number_)]);
  }

  template <class Awaited>
  void expect_not_exited(lane which, const call_site& call, Awaited awaited, clock::time_point start) {
    abort_cause why;
    awaited([&](int rank, bool owes) {
      if (!owes || !channel(which).returned(rank)) return;
      why.culprits.push_back(rank);
      why.message += (why.message.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" +
                     channel(which).last_seen(rank) + ") returned";
    });
    if (why.culprits.empty()) return;
    why.fault = comm_fault::peer_failed;
    why.there = channel(which).last_site(why.culprits.front());
    why.message += " and never entered " + call.text();
    fail(which, call, std::move(why), seconds(clock::now() - start));
  }

  // The awaited processes of this machine: one that is gone has failed, one that is stopped fails at the stall limit.
  template <class Awaited>
  void inspect(lane which, const call_site& call, Awaited awaited, clock::time_point now,
               clock::time_point& stalled_since) {
    abort_cause why;
    bool stopped_peer = false;
    awaited([&](int rank, bool) {
      const process_state state = state_of(rank);
      const bool gone = state == process_state::gone;
      if (state == process_state::stopped) {
        if (stalled_since == clock::time_point{}) stalled_since = now;
        stopped_peer = true;
      }
      if (!gone && !(state == process_state::stopped && now - stalled_since >= limits_.stall)) return;
      why.process_gone = why.process_gone || gone;
      why.culprits.push_back(rank);
      why.message += (why.message.empty() ? "rank " : ", rank ") + std::to_string(rank) + " (" +
                     channel(which).last_seen(rank) + (gone ? ") died: its process " : ") is stopped: its process ") +
                     std::to_string(processes_[static_cast<std::size_t>(rank)].number) +
                     (gone ? " is gone" : " has not run for " + std::to_string(seconds(now - stalled_since)) + " s");
    });
    if (!stopped_peer) stalled_since = {};
    if (why.culprits.empty()) return;
    why.fault = comm_fault::peer_failed;
    why.there = channel(which).last_site(why.culprits.front());
    why.message += "; it was awaited in " + call.text();
    fail(which, call, std::move(why), 0);
  }

  [[nodiscard]] std::string whereabouts(lane which, int rank) {
    std::string out = "rank " + std::to_string(rank) + " (";
    const std::string answer = out_of_band_->answer(rank);
    switch (state_of(rank)) {
      case process_state::stopped: return out + "stopped, " + channel(which).last_seen(rank) + ")";
      case process_state::gone: return out + "its process is gone, " + channel(which).last_seen(rank) + ")";
      case process_state::running: out += "running, "; break;
      case process_state::unknown: break;
    }
    if (!answer.empty()) return out + answer + ")";
    return out + "waits in no operation, " + channel(which).last_seen(rank) + ")";
  }

  template <class Awaited>
  [[noreturn]] void time_out(lane which, const call_site& call, clock::duration timeout, Awaited awaited,
                             clock::time_point start) {
    abort_cause why;
    why.fault = comm_fault::timeout;
    awaited([&](int rank, bool) {
      why.culprits.push_back(rank);
      why.process_gone = why.process_gone || state_of(rank) == process_state::gone;
      why.message += (why.message.empty() ? "" : ", ") + whereabouts(which, rank);
    });
    if (!why.culprits.empty()) why.there = channel(which).last_site(why.culprits.front());
    why.message += " did not arrive in " + call.text() + " within " + std::to_string(seconds(timeout)) + " s";
    fail(which, call, std::move(why), seconds(clock::now() - start));
  }

  std::shared_ptr<const own_process> home_ = std::make_shared<const own_process>();
  time_limits limits_;
  int ranks_ = 0;
  int number_ = 0;
  bool oversubscribed_ = false;
  bool has_left_[lane_count] = {};
  std::uint64_t slept_us_[lane_count] = {};  // in the operation that the lane is in
  std::atomic<bool> aborted_here_{false};
  MPI_Comm comms_[lane_count + 1] = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
  std::vector<process> processes_;
  world_status status_;
  std::unique_ptr<control_channel> channels_[lane_count];
  std::unique_ptr<out_of_band> out_of_band_;
  std::unique_ptr<flight_reporter> reporter_;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
