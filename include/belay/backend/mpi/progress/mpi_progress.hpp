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
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// How long ranks wait for each other.
struct time_limits {
  clock::duration timeout = std::chrono::minutes(10);
  /// A peer of this machine that is found stopped for so long has failed.
  clock::duration stall = std::chrono::seconds(30);
  /// By which both are measured; null: the machine's. It outlives all that waits.
  const time_source* time = nullptr;
};

/// Shared by the threads of one rank.
class mpi_progress {
 public:
  /// Calls back with each rank that is still awaited; `owes` false: the rank has posted all it owes, and may exit.
  using awaited_ranks = function_ref<void(function_ref<void(int rank, bool owes)>)>;

  /// Collective over the ranks of `parent`; throws `comm_error` (timeout) if not all come.
  mpi_progress(MPI_Comm parent, time_limits limits, where at);
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
  void look_for_abort() noexcept;
  /// Throws the first cause, once the flight file is written. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const;
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
  bool abort(abort_cause why);

  /// The run is over: later calls fail at once.
  void end() { status_.abort({comm_fault::revoked, {}, "the run of this world is over", ""}); }

  /// How long a call waits for peers, unless it says otherwise.
  [[nodiscard]] clock::duration timeout() const noexcept { return limits_.timeout; }
  /// The time in this world.
  [[nodiscard]] clock::time_point now() const noexcept { return status_.now(); }

  /// How long the two threads of this rank wait for each other before they sleep.
  [[nodiscard]] spin_policy before_sleep(lane which) const noexcept {
    if (oversubscribed_) return {4, 0};
    return {which == lane::caller ? 400 : 40, 0};
  }

  /// Runs part of an operation; a failure of the MPI library stops the world.
  void guarded(const call_site& call, function_ref<void()> work);

  /// Returns when `done()`, and throws `comm_error` when the world stops, an awaited rank has exited or died, or
  /// `limit` has passed.
  void await(lane which, const call_site& call, clock::duration limit, function_ref<bool()> done,
             awaited_ranks awaited);

  /// Posts this lane's exit message to all ranks, once: the lane posts no more.
  void post_exit(lane which) noexcept;

  /// Waits until all ranks have left both lanes; then no message is in transit and the communicators are freed. A world
  /// that has stopped keeps them: late messages of it must not be taken for those of another. There is no deadline,
  /// since a rank may go on without this one; one that dies or hangs in an operation ends the wait.
  void close(const call_site& call);

 private:
  static constexpr auto slice = std::chrono::milliseconds(50);

  // What ranks first gather of each other. The time of rank 0 is the job's number.
  struct rank_info {
    process identity;
    std::uint64_t now = 0;
  };
  [[nodiscard]] static std::uint64_t now_ns() noexcept;

  // Whether a rank that polls without pause keeps another from running.
  [[nodiscard]] bool is_oversubscribed(const process& self) const noexcept;

  void wait(lane which, const call_site& call, clock::duration timeout, function_ref<bool()> done,
            awaited_ranks awaited);

  // The world has stopped, but that message and those of the lane are not ordered: what all ranks entered before may
  // still be in transit. Returns when `done()`; throws when the awaited ranks have posted their last message, or after
  // a time slice.
  void await_late_messages(lane which, const call_site& call, function_ref<bool()> done, awaited_ranks awaited);

  // Ends a wait in the first cause, which is `why` where there is none yet.
  [[noreturn]] void fail(lane which, const call_site& call, abort_cause why, double waited);

  static double seconds(clock::duration time) noexcept { return std::chrono::duration<double>(time).count(); }

  [[nodiscard]] process_state state_of(int rank) const noexcept {
    return processes_[static_cast<std::size_t>(rank)].state_seen_from(processes_[static_cast<std::size_t>(number_)]);
  }

  void expect_not_exited(lane which, const call_site& call, awaited_ranks awaited, clock::time_point start);

  // The awaited processes of this machine: one that is gone has failed, one that is stopped fails at the stall limit.
  void inspect(lane which, const call_site& call, awaited_ranks awaited, clock::time_point now,
               clock::time_point& stalled_since);

  [[nodiscard]] std::string whereabouts(lane which, int rank);

  [[noreturn]] void time_out(lane which, const call_site& call, clock::duration timeout, awaited_ranks awaited,
                             clock::time_point start);

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

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/mpi/progress/mpi_progress.ipp"  // IWYU pragma: export
#endif
