// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The health of a world: why it stopped, which ranks have left, how long a wait takes at most. The first cause is kept:
// every waiting rank, and every later call, gets it with its own call site.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "belay/backend/host/memory/control_block.hpp"
#include "belay/comm/abort_cause.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/process.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// The shared health of one world, as a rank or a coordinator sees it.
class world_status {
 public:
  using clock = std::chrono::steady_clock;

  /// Waits are measured by `time`, which outlives it, or by the machine's clock.
  explicit world_status(control_block shared, const time_source* time = nullptr) noexcept
      : shared_(shared), time_(time) {}

  /// The time in this world.
  [[nodiscard]] clock::time_point now() const noexcept { return time_by(time_); }
  [[nodiscard]] const time_source* time() const noexcept { return time_; }

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

  /// There are fewer cores than ranks: a waiting rank most likely has the core that its peer needs.
  [[nodiscard]] bool shares_cores() const noexcept {
    return shared_.header().cores.load(std::memory_order_relaxed) < ranks();
  }
  /// How long a wait spins before it sleeps: the time that a peer takes to arrive where each rank has a core; else it
  /// yields the core between polls.
  [[nodiscard]] spin_policy before_sleep(lane which) const noexcept {
    if (shares_cores()) return {which == lane::caller ? 1 : 4, which == lane::caller ? 60 : 0};
    return {which == lane::caller ? spins_ : spins_ / 10, 0};
  }

  /// Polls `done(order)` for as long as peers may take to move `bytes`, and returns whether it became true: waking up
  /// from a sleep takes longer than most operations. A peer that has died meanwhile is seen after one wait's spin.
  template <class Done>
  [[nodiscard, gnu::noinline]] bool spin_while_moved(std::size_t bytes, lane which, Done done) const {
    constexpr std::size_t least_moved = 64 * 1024;  // in the time of one wait's spin, unless that is set to be long
    constexpr std::size_t most = std::size_t{64} << 20;
    if (shares_cores()) return false;
    const int polls = lesser_of(before_sleep(which).spins, 2000);
    for (std::size_t moved = 0; moved < lesser_of(bytes, most) && !aborted(); moved += least_moved) {
      for (int i = 0; i < polls; ++i) {
        if (done(std::memory_order_acquire)) return true;
        relax();
      }
    }
    return false;
  }

  /// Publishes what peers need to know of this process's or thread's rank. `spins`: polls in the time that a wait
  /// spins for.
  void arrive(int rank, pid_t pid, const core_set& cores, int spins) noexcept;

  /// The process that called `arrive`, or null. `in_own_process` is false in a forked child of it.
  [[nodiscard]] const std::shared_ptr<const own_process>& home() const noexcept { return home_; }
  [[nodiscard]] bool in_own_process() const noexcept { return home_ == nullptr || home_->here(); }

  [[nodiscard]] bool aborted(std::memory_order order = std::memory_order_acquire) const noexcept {
    return shared_.header().abort.aborted(order);
  }

  /// Stops the world, unless it has stopped already; true when `why` became the first cause.
  bool abort(const abort_cause& why) noexcept;

  /// The survivors have gone on elsewhere: from now on every call here ends in `revoked`.
  void revoke() noexcept;

  /// The first cause, or, once the survivors have gone on elsewhere, that. Only after `aborted()`, or an `abort` that
  /// came too late.
  [[nodiscard]] abort_cause cause() const;
  /// The first cause, whatever the survivors did then: for a process that is no rank.
  [[nodiscard]] abort_cause original_cause() const;

  /// The first cause as an error of this call. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const;

  /// `rank` will never again enter an operation of this lane.
  void note_exit(int rank, lane which) noexcept;
  [[nodiscard]] bool left(int rank, lane which) const noexcept {
    return shared_.seat(rank).left[index(which)].load(std::memory_order_acquire) != 0;
  }

  [[nodiscard]] flight_recorder<>& recorder(int rank, lane which) const noexcept {
    return shared_.seat(rank).recorders[index(which)];
  }
  /// Notified by `rank` when it has published something in this lane.
  [[nodiscard]] doorbell& doorbell_of(int rank, lane which) const noexcept {
    return shared_.seat(rank).doorbells[index(which)];
  }

  /// "rank 2 (in barrier #3 at train.cpp:88)", "rank 2 (stopped, after barrier #2 at train.cpp:80, and in started
  /// barrier #0 at train.cpp:85)": the other lane is named where this one is idle and the other is not.
  [[nodiscard]] std::string whereabouts(int rank, lane which) const;
  /// Where it made its last call of this lane; of the other one, where it has made none here.
  [[nodiscard]] std::string site_of(int rank, lane which) const;
  /// Why rank `reader` could not read `bytes` of the memory of rank `owner`, where that failed with `error`. Unless the
  /// kernel forbids it the owner has died, and its coordinator is about to say how: returns when the world has stopped,
  /// after a second otherwise.
  [[nodiscard]] abort_cause unreadable(int reader, int owner, lane which, std::size_t bytes, int error) const;

  /// Whether no process has joined as `rank` yet.
  [[nodiscard]] bool is_absent(int rank) const noexcept {
    return space() == address_space::several && pid_of(rank) == 0 && recorder(rank, lane::caller).count() == 0;
  }
  /// Whether the process of `rank` is stopped by a signal.
  [[nodiscard]] bool is_stopped(int rank) const noexcept;

  [[nodiscard]] pid_t pid_of(int rank) const noexcept { return shared_.seat(rank).pid.load(std::memory_order_relaxed); }
  /// Whether the kernel lets `rank` read ordinary memory of its peers.
  [[nodiscard]] bool reads_others(int rank) const noexcept {
    return shared_.seat(rank).reads_others.load(std::memory_order_relaxed) != 0;
  }

  void notify_all_ranks() const noexcept;

 private:
  control_block shared_;
  const time_source* time_;
  std::shared_ptr<const own_process> home_;
  int spins_ = 400;
};

/// Whether the first cause is still waited for: its writer lives, as far as can be seen, and had less than `most` time.
/// A process or thread that has no core for seconds is slow, not dead.
[[nodiscard]] constexpr bool may_still_write(process_state writer, world_status::clock::duration waited,
                                             world_status::clock::duration most) noexcept {
  return writer != process_state::gone && waited < most;
}

/// The cause of a world that stopped because a body threw.
[[nodiscard]] BELAY_DECL abort_cause thrown_by(const world_status& world, int number, const char* what,
                                               error_kind kind);

/// The deadline of one wait. It first asks the world's clock when the wait is about to sleep, and notes that time in
/// the flight recorder.
class deadline {
 public:
  deadline(world_status::clock::duration timeout, flight_recorder<>& recorder) noexcept
      : timeout_(timeout), recorder_(&recorder) {}

  [[nodiscard]] bool passed(const world_status& world) noexcept { return elapsed(world) >= timeout_; }
  [[nodiscard]] world_status::clock::duration elapsed(const world_status& world) noexcept {
    const auto now = world.now();
    if (!begun()) {
      start_ = now;
      recorder_->wait_from(world_status::microseconds(now));
    }
    return now - start_;
  }
  [[nodiscard]] world_status::clock::duration limit() const noexcept { return timeout_; }
  [[nodiscard]] bool begun() const noexcept { return start_ != world_status::clock::time_point{}; }
  [[nodiscard, gnu::noinline]] double seconds(const world_status& world) const noexcept {
    if (!begun()) return 0;
    return std::chrono::duration<double>(world.now() - start_).count();
  }
  /// For the recorder: 0 where the wait did not sleep, and at least 1 where it did.
  [[nodiscard]] std::uint64_t waited_us(const world_status& world) const noexcept {
    return begun() ? static_cast<std::uint64_t>(seconds(world) * 1e6) + 1 : 0;
  }

 private:
  world_status::clock::duration timeout_;
  flight_recorder<>* recorder_;
  world_status::clock::time_point start_{};
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/failure/world_status.ipp"  // IWYU pragma: export
#endif
