// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Who holds a world of processes, as the holder's loop sees it: it keeps the control segments, notes how each rank
// ended, and tells the others of an end that the rank itself could not tell.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/messages.hpp"
#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/comm/signal_name.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// How one rank of a world of processes ended.
struct rank_outcome {
  enum class kind : std::uint8_t {
    returned,   // its body returned
    threw,      // its body threw; `what` says what
    exited,     // its process exited with `code` in its body
    signalled,  // its process was ended by signal `code`
    unknown,    // its process ended, and only its parent knows how
  };
  kind how = kind::unknown;
  int code = 0;
  std::string what;    // of an exception
  std::string result;  // the bytes of what the body returned

  /// "returned", "threw: ...", "exited with code 3", "was ended by SIGKILL (9)"
  [[nodiscard]] std::string text() const {
    switch (how) {
      case kind::returned: return "returned";
      case kind::threw: return "threw: " + what;
      case kind::exited: return "exited with code " + std::to_string(code);
      case kind::signalled: return "was ended by " + signal_name(code);
      case kind::unknown: break;
    }
    return "ended";
  }
};

/// The `World` of a holder. Used by the thread that runs the holder.
class world_monitor {
 public:
  world_monitor(int ranks, const world_options& options)
      : options_(options),
        outcomes_(static_cast<std::size_t>(ranks)),
        said_(static_cast<std::size_t>(ranks)),
        stalled_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) members_.push_back(rank);
    make_control(ranks);
  }

  /// The segment of the first epoch, and the health of the present one.
  [[nodiscard]] memory_segment& first_control() noexcept { return *segments_.front(); }
  [[nodiscard]] const world_status& state() const noexcept { return *worlds_.back(); }
  /// The health of the first epoch that failed; null when none has.
  [[nodiscard]] const world_status* failed() const noexcept {
    for (const auto& each : worlds_) {
      if (each->aborted()) return each.get();
    }
    return nullptr;
  }
  /// The ranks of the present epoch, by their numbers at the start.
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }
  /// By rank at the start.
  [[nodiscard]] const std::vector<rank_outcome>& outcomes() const noexcept { return outcomes_; }
  /// The first rank that did not return, or nothing.
  [[nodiscard]] std::optional<int> first_failure() const noexcept { return first_failure_; }

  /// Nobody can be led to an end any more; from now on each call of a rank says why.
  void give_up(const std::string& why) noexcept {
    worlds_.back()->abort({comm_fault::peer_failed, {0}, why, ""});
    report();
  }

  /// Said by the process that was to be `rank` of the first epoch, where it was forked and shares this memory.
  void could_not_join(int rank, const std::string& why) noexcept {
    worlds_.front()->abort(
        {comm_fault::peer_failed, {rank}, "rank " + std::to_string(rank) + " could not join: " + why, ""});
  }

  // What the holder calls.

  /// Calibrates when the first rank has come, while the others start; none has its answer yet.
  void joined(int, pid_t) {
    if (!std::exchange(calibrated_, true)) calibrate(worlds_.front()->shared(), options_);
  }

  /// A failure in whatever it does: before it joins, in its body, or after its goodbye, when its process is to end.
  void stalled(int rank) {
    const auto place = static_cast<std::size_t>(rank);
    stalled_[place] = true;
    const auto found = std::find(members_.begin(), members_.end(), rank);
    if (found == members_.end()) return;  // the others have gone on without it
    world_status& world = *worlds_.back();
    const int number = static_cast<int>(found - members_.begin());
    abort_cause why;
    why.fault = comm_fault::peer_failed;
    why.culprits = {number};
    why.there = world.site_of(number, lane::caller);
    why.message = stall_text(rank, numbering::of_epoch);
    world.abort(why);
    report();
  }
  /// What a rank is called by: after a shrink, a survivor has another number than at the start.
  enum class numbering { at_start, of_epoch };
  /// "rank 2 (stopped, after barrier #3 at train.cpp:88) has been stopped for 30 s", of a rank by its number at the
  /// start.
  [[nodiscard]] std::string stall_text(int rank, numbering by) const {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", options_.stall_limit.count());
    const std::string told = std::string(" has been stopped for ") + seconds + " s";
    const auto found = std::find(members_.begin(), members_.end(), rank);
    const int number = static_cast<int>(found - members_.begin());
    const std::string who =
        "rank " + std::to_string(by == numbering::at_start || found == members_.end() ? rank : number);
    if (said_[static_cast<std::size_t>(rank)]) return who + told + " after its goodbye";
    if (worlds_.front()->pid_of(rank) == 0) return who + told + ", and has not joined";
    if (found == members_.end()) return who + told + ", and the others have gone on without it";
    const std::string where_it_is = worlds_.back()->whereabouts(number, lane::caller);
    return who + where_it_is.substr(where_it_is.find(" (")) + told;
  }

  void said(int rank, const exit_message& last) {
    rank_outcome& mine = outcomes_[static_cast<std::size_t>(rank)];
    said_[static_cast<std::size_t>(rank)] = true;
    const bool returned = last.how == exit_message::outcome::returned;
    mine.how = returned ? rank_outcome::kind::returned : rank_outcome::kind::threw;
    (returned ? mine.result : mine.what) = last.body;
    if (!returned) note_failure(rank);
    report();
  }

  void ended(int rank, exit_status how) {
    // What it does after its goodbye is not the world's, unless it had to be killed for being stopped there.
    const auto place = static_cast<std::size_t>(rank);
    if (said_[place] && !(stalled_[place] && how.how == exit_status::kind::signalled)) return;
    rank_outcome& mine = outcomes_[static_cast<std::size_t>(rank)];
    mine.how = how.how == exit_status::kind::exited      ? rank_outcome::kind::exited
               : how.how == exit_status::kind::signalled ? rank_outcome::kind::signalled
                                                         : rank_outcome::kind::unknown;
    mine.code = how.code;
    note_failure(rank);
    const auto found = std::find(members_.begin(), members_.end(), rank);
    if (found == members_.end()) return;
    world_status& world = *worlds_.back();
    const int number = static_cast<int>(found - members_.begin());
    const flight_record last = world.recorder(number, lane::caller).last();
    abort_cause why;
    why.fault = comm_fault::peer_failed;
    why.culprits = {number};
    why.signal = how.how == exit_status::kind::signalled ? how.code : 0;
    why.exit_code = how.how == exit_status::kind::exited ? how.code : -1;
    why.there = last.site;
    why.message = "the process of rank " + std::to_string(number) + " " + mine.text() + " " + last.text();
    world.abort(why);
    report();
  }

  [[nodiscard]] memory_segment& renew(const std::vector<int>& survivors) {
    worlds_.back()->revoke();
    members_ = survivors;
    make_control(static_cast<int>(survivors.size()));
    return *segments_.back();
  }

 private:
  void report() const noexcept {
    if (worlds_.back()->aborted()) report_failure_once(*worlds_.back());
  }
  void note_failure(int rank) noexcept {
    if (!first_failure_) first_failure_ = rank;
  }

  void make_control(int ranks) {
    control_shape shape = control_shape_for(ranks, address_space::several, options_);
    shape.epoch = static_cast<std::uint32_t>(worlds_.size());
    if (!worlds_.empty()) shape.job = worlds_.front()->shared().shape().job;
    segments_.push_back(
        std::make_unique<memory_segment>(memory_segment::create("belay-control", control_block::bytes_for(shape))));
    worlds_.push_back(std::make_unique<world_status>(control_block::make(segments_.back()->data(), shape)));
    worlds_.back()->shared().header().copies = worlds_.front()->copies();
  }

  world_options options_;
  std::vector<rank_outcome> outcomes_;
  std::vector<bool> said_;
  std::vector<bool> stalled_;
  bool calibrated_ = false;
  std::vector<int> members_;  // of the present epoch, by their numbers at the start
  std::optional<int> first_failure_;
  std::vector<std::unique_ptr<memory_segment>> segments_;
  std::vector<std::unique_ptr<world_status>> worlds_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
