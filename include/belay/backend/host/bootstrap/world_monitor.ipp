// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the coordinator's events mean for the ranks that are left.
#pragma once

#include <algorithm>
#include <cstdio>
#include <utility>

#include "belay/backend/host/bootstrap/world_monitor.hpp"
#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL world_monitor::world_monitor(int ranks, const world_options& options)
    : options_(options),
      outcomes_(static_cast<std::size_t>(ranks)),
      said_goodbye_(static_cast<std::size_t>(ranks)),
      stalled_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) members_.push_back(rank);
  make_control_block(ranks);
}

BELAY_DECL const world_status* world_monitor::failed() const noexcept {
  for (const auto& each : worlds_) {
    if (each->aborted()) return each.get();
  }
  return nullptr;
}

BELAY_DECL void world_monitor::give_up(const std::string& why) noexcept {
  abort({comm_fault::peer_failed, {0}, why, ""});
}

BELAY_DECL void world_monitor::could_not_join(int rank, const std::string& why) noexcept {
  worlds_.front()->abort(
      {comm_fault::peer_failed, {rank}, "rank " + std::to_string(rank) + " could not join: " + why, ""});
}

BELAY_DECL std::optional<int> world_monitor::number_in_epoch(int rank) const {
  const auto found = std::find(members_.begin(), members_.end(), rank);
  if (found == members_.end()) return std::nullopt;
  return static_cast<int>(found - members_.begin());
}

BELAY_DECL void world_monitor::on_join(int, pid_t) {
  if (!std::exchange(calibrated_, true)) calibrate(worlds_.front()->shared(), options_);
}

BELAY_DECL void world_monitor::on_stall(int rank) {
  stalled_[static_cast<std::size_t>(rank)] = true;
  const std::optional<int> number = number_in_epoch(rank);
  if (!number) return;  // the others have gone on without it
  abort_cause why;
  why.fault = comm_fault::peer_failed;
  why.culprits = {*number};
  why.there = state().site_of(*number, lane::caller);
  why.message = stall_text(rank, numbering::of_epoch);
  abort(why);
}

BELAY_DECL std::string world_monitor::stall_text(int rank, numbering by) const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%g", options_.stall_limit.count());
  const std::string stopped = std::string(" has been stopped for ") + seconds + " s";
  const std::optional<int> number = number_in_epoch(rank);
  const std::string name = "rank " + std::to_string(by == numbering::of_epoch && number ? *number : rank);
  if (said_goodbye_[static_cast<std::size_t>(rank)]) return name + stopped + " after its goodbye";
  if (worlds_.front()->pid_of(rank) == 0) return name + stopped + ", and has not joined";
  if (!number) return name + stopped + ", and the others have gone on without it";
  const std::string where_it_is = state().whereabouts(*number, lane::caller);
  return name + where_it_is.substr(where_it_is.find(" (")) + stopped;
}

BELAY_DECL void world_monitor::on_exit_message(int rank, const exit_message& last) {
  rank_outcome& end = outcomes_[static_cast<std::size_t>(rank)];
  said_goodbye_[static_cast<std::size_t>(rank)] = true;
  const bool returned = last.how == exit_message::outcome::returned;
  end.how = returned ? rank_outcome::outcome_kind::returned : rank_outcome::outcome_kind::threw;
  (returned ? end.result : end.what) = last.body;
  print_report();
}

BELAY_DECL void world_monitor::on_exit(int rank, exit_status how) {
  // What a process does after its goodbye is not the world's, unless it had to be killed for being stopped there.
  const auto index = static_cast<std::size_t>(rank);
  const bool signalled = how.how == exit_status::exit_kind::signalled;
  const bool exited = how.how == exit_status::exit_kind::exited;
  if (said_goodbye_[index] && !(stalled_[index] && signalled)) return;
  rank_outcome& end = outcomes_[index];
  end.how = exited      ? rank_outcome::outcome_kind::exited
            : signalled ? rank_outcome::outcome_kind::signalled
                        : rank_outcome::outcome_kind::unknown;
  end.code = how.code;
  const std::optional<int> number = number_in_epoch(rank);
  if (!number) return;
  const flight_record last = worlds_.back()->recorder(*number, lane::caller).last();
  abort_cause why;
  why.fault = comm_fault::peer_failed;
  why.culprits = {*number};
  why.signal = signalled ? how.code : 0;
  why.exit_code = exited ? how.code : -1;
  why.there = last.site;
  why.message = "the process of rank " + std::to_string(*number) + " " + end.text() + " " + last.text();
  abort(why);
}

BELAY_DECL memory_segment& world_monitor::renew(const std::vector<int>& survivors) {
  worlds_.back()->revoke();
  members_ = survivors;
  make_control_block(static_cast<int>(survivors.size()));
  return *segments_.back();
}

BELAY_DECL void world_monitor::abort(const abort_cause& why) noexcept {
  worlds_.back()->abort(why);
  print_report();
}
BELAY_DECL void world_monitor::print_report() const noexcept {
  if (state().aborted()) report_failure_once(state());
}

BELAY_DECL void world_monitor::make_control_block(int ranks) {
  control_shape shape = control_shape_for(ranks, address_space::several, options_);
  shape.epoch = static_cast<std::uint32_t>(worlds_.size());
  if (!worlds_.empty()) shape.job = worlds_.front()->shared().shape().job;
  segments_.push_back(
      std::make_unique<memory_segment>(memory_segment::create("belay-control", control_block::bytes_for(shape))));
  worlds_.push_back(
      std::make_unique<world_status>(control_block::make(segments_.back()->data(), shape), options_.clock));
  worlds_.back()->shared().header().copies = worlds_.front()->copies();
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
