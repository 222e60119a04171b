// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is known of a world of ranks when it stopped: why, the state of each rank, and its last operations. A backend
// fills it in: from recorders that all ranks share, or from its own one and the messages of the others.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/abort_cause.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/comm/lane.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// The state of a rank: `left` has ended its body, `gone` has lost its process before that, `absent` has not had one
/// yet; `unknown` runs on a machine of which nothing is known here.
enum class rank_state { running, stopped, gone, left, absent, unknown };

[[nodiscard]] constexpr const char* name(rank_state state) noexcept {
  switch (state) {
    case rank_state::running: return "running";
    case rank_state::stopped: return "stopped";
    case rank_state::gone: return "gone";
    case rank_state::left: return "left";
    case rank_state::absent: return "absent";
    case rank_state::unknown: return "unknown";
  }
  return "unknown";
}

/// A group by its number, and its ranks of the world in group order.
struct known_group {
  std::uint32_t number = 0;
  std::vector<int> members;
};

/// The operations of one rank in one lane: its recorder, which must outlive this, or what its messages said.
class flight_history {
 public:
  flight_history() = default;
  explicit flight_history(const flight_recorder<>& own) noexcept : recorder_(&own) {}
  /// The latest ones of `count`, the oldest first.
  flight_history(std::vector<flight_record> records, std::uint64_t count) noexcept
      : records_(std::move(records)), count_(count) {}

  /// Operations so far, and the oldest that may be kept.
  [[nodiscard]] std::uint64_t count() const noexcept { return recorder_ != nullptr ? recorder_->count() : count_; }
  [[nodiscard]] std::uint64_t first() const noexcept {
    const std::uint64_t kept = recorder_ != nullptr ? recorder_->capacity() : records_.size();
    return count() > kept ? count() - kept : 0;
  }
  /// Operation `number`; an empty record when it is not kept.
  [[nodiscard]] flight_record operator[](std::uint64_t number) const {
    if (recorder_ != nullptr) return (*recorder_)[number];
    return number < first() || number >= count_ ? flight_record{} : records_[number - first()];
  }
  [[nodiscard]] flight_record last() const {
    if (recorder_ != nullptr) return recorder_->last();
    return records_.empty() ? flight_record{} : records_.back();
  }

 private:
  const flight_recorder<>* recorder_ = nullptr;
  std::vector<flight_record> records_;
  std::uint64_t count_ = 0;
};

struct flight_rank {
  std::int64_t pid = 0;  // 0: a thread
  rank_state state = rank_state::unknown;
  flight_history called, started;

  [[nodiscard]] const flight_history& of(lane which) const noexcept { return which == lane::caller ? called : started; }
};

/// A world as the process that reports sees it.
struct flight_snapshot {
  std::uint64_t job = 0;
  std::uint64_t epoch = 0;  // how often survivors went on without others
  std::string transport;    // "threads", "processes", "mpi"
  int told_by = -1;  // the rank that reports, with its own operations and the messages of others; -1: all are known
  std::optional<abort_cause> cause;
  std::uint64_t until_us = 0;  // when it stopped, by the steady clock; else now
  std::vector<flight_rank> ranks;
  std::vector<known_group> groups;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(ranks.size()); }
  [[nodiscard]] const flight_rank& rank(int which) const noexcept { return ranks[static_cast<std::size_t>(which)]; }
};

/// A time as recorders keep it.
[[nodiscard]] inline std::uint64_t flight_microseconds(std::chrono::steady_clock::time_point at) noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count());
}

}  // namespace belay::inline BELAY_ABI
