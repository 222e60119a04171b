// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The health of a world of ranks: the first thing that went wrong, who has left, how long to wait. The first
// cause is kept for good; everybody who waits, and everybody who calls later, gets it with his own call site.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/failure/process_identity.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/flight_snapshot.hpp"
#include "belay/comm/lane.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/own_process.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The shared health of one run, seen from one rank or from who watches over it.
class world_status {
 public:
  using clock = std::chrono::steady_clock;

  explicit world_status(control_block shared) noexcept : shared_(shared) {}

  /// A time as the recorders keep it.
  [[nodiscard]] static std::uint64_t microseconds(clock::time_point at) noexcept { return flight_microseconds(at); }

  [[nodiscard]] const control_block& shared() const noexcept { return shared_; }
  /// The memory access of copies on this machine, the same for all ranks.
  [[nodiscard]] const copy_table& copies() const noexcept { return shared_.header().copies; }
  [[nodiscard]] int ranks() const noexcept { return shared_.shape().ranks; }
  [[nodiscard]] address_space space() const noexcept { return shared_.shape().space; }
  [[nodiscard]] clock::duration timeout() const noexcept {
    return std::chrono::nanoseconds(shared_.shape().timeout_ns);
  }
  [[nodiscard]] clock::duration stall_limit() const noexcept {
    return std::chrono::nanoseconds(shared_.shape().stall_ns);
  }

  /// There are fewer cores than ranks: who waits has most likely what its peer needs.
  [[nodiscard]] bool shares_cores() const noexcept {
    return shared_.header().cores.load(std::memory_order_relaxed) < ranks();
  }
  /// How long a wait looks before it sleeps: some 20 microseconds where a core is free for each rank, since then a
  /// peer is about to arrive; where not, it gives the core away between looks.
  [[nodiscard]] spin_policy before_sleep(lane which) const noexcept {
    if (shares_cores()) return {which == lane::caller ? 1 : 4, which == lane::caller ? 60 : 0};
    return {which == lane::caller ? spins_ : spins_ / 10, 0};
  }

  /// Looks whether `done(order)` for as long as peers may take to move `bytes`, and returns whether it was: to wake up
  /// from a sleep takes longer than most operations. A peer that died meanwhile is seen after one wait's spin.
  template <class Done>
  [[nodiscard, gnu::noinline]] bool spin_while_moved(std::size_t bytes, lane which, Done done) const {
    constexpr std::size_t least_moved = 64 * 1024;  // in the time that a wait spins for, unless that is set to be long
    constexpr std::size_t most = std::size_t{64} << 20;
    if (shares_cores()) return false;
    const int looks = std::min(before_sleep(which).spins, 2000);
    for (std::size_t moved = 0; moved < std::min(bytes, most) && !aborted(); moved += least_moved) {
      for (int i = 0; i < looks; ++i) {
        if (done(std::memory_order_acquire)) return true;
        relax();
      }
    }
    return false;
  }

  /// This process's or thread's rank has come: what its peers need to know. `spins` is how many looks take the time
  /// that a wait shall spin for.
  void arrive(int rank, pid_t pid, const core_set& cores, int spins) noexcept {
    spins_ = spins;
    home_ = std::make_shared<const own_process>();
    rank_block& seat = shared_.seat(rank);
    seat.reads_others.store(pid != 0 && may_read_processes(), std::memory_order_relaxed);
    for (std::size_t i = 0; i < core_set::words; ++i) seat.cores[i].store(cores.bits[i], std::memory_order_relaxed);
    seat.pid.store(pid, std::memory_order_relaxed);
    seat.core_count.store(static_cast<std::uint32_t>(cores.count()), std::memory_order_seq_cst);
    core_set all;
    for (int q = 0; q < ranks(); ++q) {
      const rank_block& other = shared_.seat(q);
      if (other.core_count.load(std::memory_order_seq_cst) == 0) return;  // a later one will count
      for (std::size_t i = 0; i < core_set::words; ++i) all.bits[i] |= other.cores[i].load(std::memory_order_relaxed);
    }
    shared_.header().cores.store(all.count(), std::memory_order_relaxed);
  }

  /// The process that arrived here, or null; false in a forked child of it.
  [[nodiscard]] const std::shared_ptr<const own_process>& home() const noexcept { return home_; }
  [[nodiscard]] bool in_own_process() const noexcept { return home_ == nullptr || home_->here(); }

  [[nodiscard]] bool aborted(std::memory_order order = std::memory_order_acquire) const noexcept {
    return shared_.header().abort.aborted(order);
  }

  /// Stops the world, unless it has stopped already; true when `why` became the first cause.
  bool abort(const abort_cause& why) noexcept {
    const auto write = [&, &cause = shared_.header().cause] {
      cause.fault = static_cast<std::uint32_t>(why.fault);
      cause.culprit_count =
          static_cast<std::uint32_t>(std::min<std::size_t>(why.culprits.size(), shared_cause::most_culprits));
      for (std::size_t i = 0; i < cause.culprit_count; ++i) cause.culprits[i] = why.culprits[i];
      cause.signal = why.signal;
      cause.exit_code = why.exit_code;
      cause.at_us = microseconds(clock::now());
      cause.message.set(why.message);
      cause.there.set(why.there);
    };
    return shared_.header().abort.abort(write, [this] { notify_all_ranks(); });
  }

  /// The survivors have gone on elsewhere: from now on every call here ends in `revoked`.
  void revoke() noexcept {
    shared_.header().abort.revoke();
    abort({comm_fault::revoked, {}, "the world was given up by all its ranks", ""});
    notify_all_ranks();
  }

  /// The first cause, or, once the survivors have gone on elsewhere, that. Only after `aborted()`, or a `stop` that
  /// came too late.
  [[nodiscard]] abort_cause cause() const {
    abort_cause out = original_cause();
    if (shared_.header().abort.revoked() && out.fault != comm_fault::revoked) {
      out.message =
          "the survivors have gone on in a new world after " + std::string(name(out.fault)) + ": " + out.message;
      out.fault = comm_fault::revoked;
    }
    return out;
  }
  /// The first cause for who is no rank, whatever the survivors did then.
  [[nodiscard]] abort_cause original_cause() const {
    control_header& header = shared_.header();
    abort_cause out;
    // Another rank may be writing it; or have been killed at it.
    const auto patient_until = clock::now() + std::chrono::milliseconds(200);
    if (!header.abort.is_told([&] { return clock::now() < patient_until; })) {
      out.message = "the rank that stopped the world ended before it could say why";
      return out;
    }
    const shared_cause& cause = header.cause;
    out.fault = static_cast<comm_fault>(std::min(cause.fault, static_cast<std::uint32_t>(comm_fault::revoked)));
    out.culprits.assign(cause.culprits, cause.culprits + std::min(cause.culprit_count, shared_cause::most_culprits));
    out.signal = cause.signal;
    out.exit_code = cause.exit_code;
    out.at_us = cause.at_us;
    out.message = cause.message.get();
    out.there = cause.there.get();
    return out;
  }

  /// The first cause as an error of this call. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    raise_cause(cause(), mine, seconds_waited);
  }

  /// `rank` will never again enter an operation of this lane.
  void leave(int rank, lane which) noexcept {
    rank_block& seat = shared_.seat(rank);
    seat.left[index(which)].store(1, std::memory_order_seq_cst);
    seat.doorbells[index(which)].notify_all();
    notify_all_ranks();
  }
  [[nodiscard]] bool left(int rank, lane which) const noexcept {
    return shared_.seat(rank).left[index(which)].load(std::memory_order_acquire) != 0;
  }

  [[nodiscard]] flight_recorder<>& recorder(int rank, lane which) const noexcept {
    return shared_.seat(rank).recorders[index(which)];
  }
  /// Rung by `rank` when it has published something in this lane.
  [[nodiscard]] doorbell& doorbell_of(int rank, lane which) const noexcept {
    return shared_.seat(rank).doorbells[index(which)];
  }

  /// "rank 2 (in barrier #3 at train.cpp:88)", "rank 2 (stopped, after barrier #2 at train.cpp:80, and in started
  /// barrier #0 at train.cpp:85)": what it does in the other lane matters when it does nothing in this one.
  [[nodiscard]] std::string whereabouts(int rank, lane which) const {
    const flight_record here = recorder(rank, which).last(), aside = recorder(rank, other(which)).last();
    return "rank " + std::to_string(rank) + " (" +
           (is_stopped(rank)  ? "stopped, "
            : is_absent(rank) ? "has not come, "
                              : "") +
           text_of(here, aside, which == lane::caller ? "started" : "called") + ")";
  }
  /// Where it made its last call of this lane; of the other one, where it has made none here.
  [[nodiscard]] std::string site_of(int rank, lane which) const {
    const flight_record here = recorder(rank, which).last();
    return here.what != operation::none ? here.site : recorder(rank, other(which)).last().site;
  }
  /// Why rank `reader` could not read `bytes` of the memory of rank `owner`, where that failed with `error`. Unless the
  /// kernel forbids it the owner has died, and who watches it is about to tell how: returns when the world has stopped,
  /// after a second otherwise.
  [[nodiscard]] abort_cause unreadable(int reader, int owner, lane which, std::size_t bytes, int error) const {
    const auto patient_until = clock::now() + std::chrono::seconds(1);
    while (error != EPERM && !aborted() && clock::now() < patient_until) std_atomics::yield();
    return {comm_fault::peer_failed,
            {owner},
            "rank " + std::to_string(reader) + " cannot read " + std::to_string(bytes) + " bytes of " +
                whereabouts(owner, which),
            ""};
  }

  /// Whether no process has come as `rank` yet.
  [[nodiscard]] bool is_absent(int rank) const noexcept {
    return space() == address_space::several && pid_of(rank) == 0 && recorder(rank, lane::caller).count() == 0;
  }
  /// Whether the process of `rank` has been stopped by a signal.
  [[nodiscard]] bool is_stopped(int rank) const noexcept {
    const pid_t pid = pid_of(rank);
    return pid > 0 && state_of_process(pid) == process_state::stopped;
  }

  [[nodiscard]] pid_t pid_of(int rank) const noexcept { return shared_.seat(rank).pid.load(std::memory_order_relaxed); }
  /// Whether the kernel lets `rank` read ordinary memory of its peers.
  [[nodiscard]] bool reads_others(int rank) const noexcept {
    return shared_.seat(rank).reads_others.load(std::memory_order_relaxed) != 0;
  }

  void notify_all_ranks() const noexcept {
    for (int q = 0; q < ranks(); ++q) {
      for (doorbell& each : shared_.seat(q).doorbells) each.notify_all();
    }
  }

 private:
  [[nodiscard]] static constexpr lane other(lane which) noexcept {
    return which == lane::caller ? lane::stream : lane::caller;
  }

  control_block shared_;
  std::shared_ptr<const own_process> home_;
  int spins_ = 400;
};

/// The cause of a world that stopped because a body threw.
[[nodiscard]] inline abort_cause thrown_by(const world_status& world, int number, const char* what) {
  const flight_record last = world.recorder(number, lane::caller).last();
  return {comm_fault::peer_failed,
          {number},
          "rank " + std::to_string(number) + " threw " + last.text() + ": " + what,
          last.site};
}

/// The deadline of one wait. The clock is first read when the wait is about to sleep, and the recorder told.
class deadline {
 public:
  deadline(world_status::clock::duration timeout, flight_recorder<>& recorder) noexcept
      : timeout_(timeout), recorder_(&recorder) {}

  [[nodiscard]] bool passed() noexcept { return elapsed() >= timeout_; }
  [[nodiscard]] world_status::clock::duration elapsed() noexcept {
    const auto now = world_status::clock::now();
    if (!begun()) {
      start_ = now;
      recorder_->wait_from(world_status::microseconds(now));
    }
    return now - start_;
  }
  [[nodiscard]] world_status::clock::duration limit() const noexcept { return timeout_; }
  [[nodiscard]] bool begun() const noexcept { return start_ != world_status::clock::time_point{}; }
  [[nodiscard]] double seconds() const noexcept {
    if (!begun()) return 0;
    return std::chrono::duration<double>(world_status::clock::now() - start_).count();
  }
  /// For the recorder: 0 where the wait did not sleep, and at least 1 where it did.
  [[nodiscard]] std::uint64_t waited_us() const noexcept {
    return begun() ? static_cast<std::uint64_t>(seconds() * 1e6) + 1 : 0;
  }

 private:
  world_status::clock::duration timeout_;
  flight_recorder<>* recorder_;
  world_status::clock::time_point start_{};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
