// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A peer that does not come: whether to go on waiting, and, if not, why. It may have left its body, its process may
// have been stopped for longer than the stall limit, or the deadline has passed and all that can be said is what it
// does instead.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Of one wait. Asked before each sleep only.
class wait_diagnosis {
 public:
  wait_diagnosis(const world_status& world, std::span<const int> members, lane which, deadline& until) noexcept
      : world_(&world), members_(members), lane_(which), until_(&until) {}

  /// True when waiting has no sense any more. `absent(q)` tells whether rank q of the group has not come to this
  /// operation; `who` is waited for though it may have come.
  template <class Absent>
  [[nodiscard]] bool hopeless(Absent absent, int who) {
    if (until_->passed() || somebody_left(absent, who)) return true;
    return somebody_stalls(absent, who);
  }

  template <class Absent>
  [[nodiscard]] abort_cause cause(const call_site& call, Absent absent, int who) const {
    abort_cause why;
    const auto culprits = [&](auto guilty) {
      for (int q = 0; q < size(); ++q) {
        if (missing(absent, who, q) && guilty(q)) why.culprits.push_back(world_rank(q));
      }
      for (int rank : why.culprits) why.message += (why.message.empty() ? "" : ", ") + world_->whereabouts(rank, lane_);
      if (!why.culprits.empty()) why.there = world_->site_of(why.culprits.front(), lane_);
      return !why.culprits.empty();
    };
    const std::string awaited = std::string(name(call.what)) + " #" + std::to_string(call.number);
    why.fault = comm_fault::peer_failed;
    if (culprits([&](int q) { return world_->left(world_rank(q), lane_); })) {
      why.message += " returned and never entered " + awaited;
    } else if (stalled_ && culprits([&](int q) { return world_->is_stopped(world_rank(q)); })) {
      why.message += " has been stopped for " + seconds(world_->stall_limit()) + " s while " + awaited + " waits";
    } else {
      why.fault = comm_fault::timeout;
      culprits([](int) { return true; });
      why.message += " did not arrive in " + awaited + " within " + seconds(until_->limit()) + " s";
      blame_stopped(why);
    }
    return why;
  }

 private:
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int world_rank(int who) const noexcept { return members_[static_cast<std::size_t>(who)]; }
  [[nodiscard]] static std::string seconds(world_status::clock::duration time) {
    return std::to_string(std::chrono::duration<double>(time).count());
  }
  // Who did not arrive may itself wait for a rank that is stopped, in a group that this rank is no part of.
  void blame_stopped(abort_cause& why) const {
    std::vector<int> stopped;
    for (int rank = 0; rank < world_->ranks(); ++rank) {
      if (world_->is_stopped(rank)) stopped.push_back(rank);
    }
    const auto blamed = [&](int rank) {
      return std::find(why.culprits.begin(), why.culprits.end(), rank) != why.culprits.end();
    };
    if (stopped.empty() || std::any_of(stopped.begin(), stopped.end(), blamed)) return;
    for (int rank : stopped) why.message += "; " + world_->whereabouts(rank, lane_) + " holds the others up";
    why.culprits = stopped;
    why.there = world_->site_of(stopped.front(), lane_);
  }
  template <class Absent>
  [[nodiscard]] static bool missing(Absent absent, int who, int q) {
    return q == who || absent(q);
  }

  template <class Absent>
  [[nodiscard]] bool somebody_left(Absent absent, int who) const {
    for (int q = 0; q < size(); ++q) {
      // What it did before it left counts: it is asked for again afterwards.
      if (missing(absent, who, q) && world_->left(world_rank(q), lane_)) return true;
    }
    return false;
  }

  template <class Absent>
  [[nodiscard]] bool somebody_stalls(Absent absent, int who) {
    const auto now = until_->elapsed();
    bool any = false;
    for (int q = 0; q < size() && !any; ++q) any = missing(absent, who, q) && world_->is_stopped(world_rank(q));
    if (!any)
      stopped_since_ = none;
    else if (stopped_since_ == none)
      stopped_since_ = now;
    else
      stalled_ = now - stopped_since_ >= world_->stall_limit();
    return stalled_;
  }

  static constexpr world_status::clock::duration none = world_status::clock::duration::min();

  const world_status* world_;
  std::span<const int> members_;
  lane lane_;
  deadline* until_;
  world_status::clock::duration stopped_since_ = none;
  bool stalled_ = false;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
