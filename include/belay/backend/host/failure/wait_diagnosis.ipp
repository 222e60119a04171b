// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which absent ranks have left, are stopped or are late.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "belay/backend/host/failure/wait_diagnosis.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

[[gnu::cold]] BELAY_DECL bool wait_diagnosis::hopeless(absence absent, int awaited) {
  if (until_->passed(*world_)) return true;
  bool any_stopped = false;
  for (int q = 0; q < size(); ++q) {
    if (q != awaited && !absent(q)) continue;
    // What it did before it left counts: it is asked for again afterwards.
    if (world_->left(world_rank(q), lane_)) return true;
    any_stopped = any_stopped || world_->is_stopped(world_rank(q));
  }
  const auto now = until_->elapsed(*world_);
  if (!any_stopped)
    stopped_since_ = never;
  else if (stopped_since_ == never)
    stopped_since_ = now;
  else
    stalled_ = now - stopped_since_ >= world_->stall_limit();
  return stalled_;
}

[[gnu::cold]] BELAY_DECL abort_cause wait_diagnosis::cause(const call_site& call, absence absent, int awaited) const {
  abort_cause why;
  const auto missing = [&](int q) { return q == awaited || absent(q); };
  const auto has_left = [&](int q) { return missing(q) && world_->left(world_rank(q), lane_); };
  const auto is_stopped = [&](int q) { return missing(q) && world_->is_stopped(world_rank(q)); };
  const auto seconds = [](world_status::clock::duration time) {
    return std::to_string(std::chrono::duration<double>(time).count());
  };
  const std::string operation = std::string(name(call.what)) + " #" + std::to_string(call.number);
  why.fault = comm_fault::peer_failed;
  if (add_culprits(why, has_left)) {
    why.message += " returned and never entered " + operation;
  } else if (stalled_ && add_culprits(why, is_stopped)) {
    why.message += " has been stopped for " + seconds(world_->stall_limit()) + " s while " + operation + " waits";
  } else {
    why.fault = comm_fault::timeout;
    static_cast<void>(add_culprits(why, missing));
    why.message += " did not arrive in " + operation + " within " + seconds(until_->limit()) + " s";
    blame_stopped(why);
  }
  return why;
}

[[gnu::cold]] BELAY_DECL bool wait_diagnosis::add_culprits(abort_cause& why, function_ref<bool(int q)> guilty) const {
  for (int q = 0; q < size(); ++q) {
    if (!guilty(q)) continue;
    why.culprits.push_back(world_rank(q));
    why.message += (why.message.empty() ? "" : ", ") + world_->whereabouts(world_rank(q), lane_);
  }
  if (!why.culprits.empty()) why.there = world_->site_of(why.culprits.front(), lane_);
  return !why.culprits.empty();
}

// A rank that did not arrive may itself wait for a stopped rank, in a group that this rank is no part of.
[[gnu::cold]] BELAY_DECL void wait_diagnosis::blame_stopped(abort_cause& why) const {
  std::vector<int> stopped;
  for (int rank = 0; rank < world_->ranks(); ++rank) {
    if (world_->is_stopped(rank)) stopped.push_back(rank);
  }
  const auto is_culprit = [&](int rank) {
    return std::find(why.culprits.begin(), why.culprits.end(), rank) != why.culprits.end();
  };
  if (stopped.empty() || std::any_of(stopped.begin(), stopped.end(), is_culprit)) return;
  for (int rank : stopped) why.message += "; " + world_->whereabouts(rank, lane_) + " holds the others up";
  why.there = world_->site_of(stopped.front(), lane_);
  why.culprits = std::move(stopped);
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
