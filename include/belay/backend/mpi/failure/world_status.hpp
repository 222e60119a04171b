// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The status of a world as one rank knows it: the first failure, its own last operations and those of its peers, as
// their control messages say: each names what its sender has entered, and a flight file has no more of ranks whose
// memory this one cannot read. The first cause is kept for good; every later call gets it with its own call site.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/process.hpp"
#include "belay/core/unique_fd.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Written by the threads of a rank that receive messages, read by the one that reports.
class peer_history {
 public:
  /// Records kept of each peer and group, so that the last one of a group outlives what the peer does in others.
  static constexpr std::size_t kept = 8;

  /// A peer has entered this operation.
  void add_entry(int from, flight_record what) {
    const std::lock_guard lock(mutex_);
    peer& sender = peer_of(from);
    group_history& here = sender.groups[{what.group, what.what == operation::exchange}];
    if (here.count > 0 && here.latest().what.number == what.number) return;  // an exchange has many messages
    what.reported = true;
    ++here.count;
    here.latest() = {sender.count++, std::move(what)};
  }

  enum class reporter { running, exited };  // one that has exited enters no other operation
  /// A peer reports its own last operation, and whether that is over.
  void add_report(int from, flight_record what, reporter state) {
    const std::lock_guard lock(mutex_);
    peer& sender = peer_of(from);
    sender.exited = sender.exited || state == reporter::exited;
    sender.report = std::move(what);
    sender.reported_at = sender.count;
  }

  [[nodiscard]] bool exited(int rank) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(rank) < peers_.size() && peers_[static_cast<std::size_t>(rank)].exited;
  }

  /// The groups in which a peer has sent to this rank: both are members.
  [[nodiscard]] std::vector<std::uint32_t> groups_with(int rank) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> out;
    if (static_cast<std::size_t>(rank) >= peers_.size()) return out;
    for (const auto& each : peers_[static_cast<std::size_t>(rank)].groups) out.push_back(each.first.first);
    return out;
  }

  /// A peer's known operations. A lane runs one after the other, so all but the last are over; the last one may be,
  /// unless the peer has reported.
  [[nodiscard]] flight_history of(int rank) const {
    const std::lock_guard lock(mutex_);
    if (static_cast<std::size_t>(rank) >= peers_.size()) return {};
    const peer& sender = peers_[static_cast<std::size_t>(rank)];
    std::vector<sequenced_record> all;
    for (const auto& [group, from] : sender.groups) {
      for (std::uint64_t i = from.count - lesser_of<std::uint64_t>(from.count, kept); i < from.count; ++i) {
        all.push_back(from.ring[i % kept]);
      }
    }
    std::sort(all.begin(), all.end(),
              [](const sequenced_record& a, const sequenced_record& b) { return a.sequence < b.sequence; });
    std::vector<flight_record> out;
    for (sequenced_record& each : all) out.push_back(std::move(each.what));
    std::uint64_t count = sender.count;
    if (sender.report.what != operation::none && sender.reported_at == sender.count) {
      const auto same = [&](const flight_record& known) {
        const bool exchanges = known.what == operation::exchange, also = sender.report.what == operation::exchange;
        return known.group == sender.report.group && known.number == sender.report.number && exchanges == also;
      };
      // One that this rank is no part of, or not yet.
      const bool last = !out.empty() && same(out.back());
      if (!last && std::none_of(out.begin(), out.end(), same)) {
        out.push_back(sender.report);
        ++count;
      } else if (last) {
        out.back() = sender.report;
      }
    }
    for (std::size_t i = 0; i + 1 < out.size(); ++i) {
      out[i].reported = false;
      out[i].finished = true;
    }
    return {std::move(out), count};
  }

 private:
  struct sequenced_record {
    std::uint64_t sequence = 0;  // among all of the peer
    flight_record what;
  };
  struct group_history {
    std::uint64_t count = 0;
    std::array<sequenced_record, kept> ring;

    [[nodiscard]] sequenced_record& latest() noexcept { return ring[(count - 1) % kept]; }
  };
  struct peer {
    std::map<std::pair<std::uint32_t, bool>, group_history> groups;  // exchanges are counted on their own
    std::uint64_t count = 0;
    flight_record report;
    std::uint64_t reported_at = 0;
    bool exited = false;
  };

  [[nodiscard]] peer& peer_of(int rank) {
    if (static_cast<std::size_t>(rank) >= peers_.size()) peers_.resize(static_cast<std::size_t>(rank) + 1);
    return peers_[static_cast<std::size_t>(rank)];
  }

  mutable std::mutex mutex_;
  std::vector<peer> peers_;
};

/// A process among those of all machines. Trivially copyable: ranks send it to each other.
/// Which process each rank is. Of those on this machine the kernel says whether they run, are stopped or are gone; of
/// those on others nothing is known.
struct process {
  std::uint64_t machine = 0;  // hash of the boot and of the space of process numbers
  std::int64_t number = 0;
  std::uint64_t start = 0;  // in the kernel's ticks; with it a number is never mistaken for its next user's
  std::int64_t core = -1;   // the only one it may run on; -1: several

  [[nodiscard]] static process self() noexcept {
    process out;
    out.number = ::getpid();
    char text[512];
    fnv1a hash;
    const std::size_t length = read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
    hash.add_text({text, length});
    struct stat space {};
    if (::stat("/proc/self/ns/pid", &space) == 0) hash.add(space.st_ino);
    out.machine = length == 0 ? 0 : hash.value();
    out.start = start_time_of_process(static_cast<pid_t>(out.number));
    if (out.start == 0) out.machine = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (::sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) == 1) {
      for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &cores)) out.core = static_cast<std::int64_t>(core);
      }
    }
    return out;
  }

  /// Its state, where it runs on the machine of `here`.
  [[nodiscard]] process_state state_seen_from(const process& here) const noexcept {
    if (machine == 0 || machine != here.machine) return process_state::unknown;
    const auto seen = read_process_status(static_cast<pid_t>(number));
    if (!seen) return says_gone(errno) ? process_state::gone : process_state::running;
    return seen->start_time == start ? seen->state() : process_state::gone;
  }

 private:
  static std::size_t read_file(const char* path, char* into, std::size_t room) noexcept {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const auto got = ::read(file, into, room - 1);
    ::close(file);
    const std::size_t length = got > 0 ? static_cast<std::size_t>(got) : 0;
    into[length] = '\0';
    return length;
  }
};

/// Shared by the threads of one rank.
class world_status {
 public:
  /// Waits are measured by `time`, which outlives it, or by the machine's clock.
  explicit world_status(const time_source* time = nullptr) noexcept : time_(time) {}

  /// The time in this world.
  [[nodiscard]] std::chrono::steady_clock::time_point now() const noexcept { return time_by(time_); }

  [[nodiscard]] bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  /// Stops the world here, unless it has stopped; true when `why` became the first cause.
  bool abort(abort_cause why) {
    const std::lock_guard lock(mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return false;
    cause_ = std::move(why);
    cause_.at_us = flight_microseconds(now());
    aborted_.store(true, std::memory_order_release);
    return true;
  }

  /// The first cause. Only after `aborted()`.
  [[nodiscard]] abort_cause cause() const {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Whether the world stopped because a process is gone.
  [[nodiscard]] bool process_gone() const {
    const std::lock_guard lock(mutex_);
    return cause_.process_gone;
  }

  /// The first cause as an error of this call. Only after `aborted()`.
  [[noreturn]] void raise(const call_site& mine, double seconds_waited = 0) const {
    raise_cause(cause(), mine, seconds_waited);
  }

  [[nodiscard]] flight_recorder<>& recorder(lane which) noexcept { return recorders_[index(which)]; }
  [[nodiscard]] const flight_recorder<>& recorder(lane which) const noexcept { return recorders_[index(which)]; }

  [[nodiscard]] peer_history& history(lane which) noexcept { return histories_[index(which)]; }
  [[nodiscard]] const peer_history& history(lane which) const noexcept { return histories_[index(which)]; }

 private:
  const time_source* time_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  abort_cause cause_;
  flight_recorder<> recorders_[lane_count];
  peer_history histories_[lane_count];
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
