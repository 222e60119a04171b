// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The flight file of a world that may span machines. No process can read the memory of all ranks, so one that is left
// writes its own operations whole, and of the others what their messages said.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/mpi/failure/world_status.hpp"
#include "belay/backend/mpi/progress/mpi_runtime.hpp"
#include "belay/comm/flight_file.hpp"
#include "belay/comm/flight_recorder.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Of one rank; `world` and `processes` (one of each rank) must outlive it.
class flight_reporter {
 public:
  flight_reporter(const world_status& world, const std::vector<process>& processes, int number, std::uint64_t job)
      : world_(&world), processes_(&processes), number_(number), job_(job) {}

  /// A group that this rank has made.
  void add_group(std::uint32_t group, const std::vector<int>& members) {
    const std::lock_guard lock(mutex_);
    if (groups_.size() == most_groups) groups_.erase(groups_.begin() + 1);  // the world stays
    groups_.push_back({group, members});
  }

  /// The world has stopped: writes and prints where BELAY_FLIGHT_DIR is set and this is the rank to do it, the lowest
  /// one that is no culprit.
  void print() noexcept {
    report_if([&] { return writer() == number_; });
  }

  /// This rank is about to end, and another one was to write: where there is no file (that this machine sees), the
  /// lowest rank that runs writes it.
  void report_at_exit() noexcept {
    report_if([&] {
      if (lowest([](int) { return true; }) != number_) return false;
      const auto until = clock::now() + std::chrono::milliseconds(250);
      while (!is_written() && clock::now() < until) nap(std::chrono::milliseconds(5));
      return true;
    });
  }
  /// This rank is about to abort the job: writes, unless another one has.
  void report_now() noexcept {
    report_if([] { return true; });
  }

  /// A snapshot of all ranks, as far as this rank knows them.
  [[nodiscard]] flight_snapshot snapshot() const {
    flight_snapshot out;
    out.job = job_;
    out.transport = "mpi";
    out.told_by = number_;
    if (world_->aborted()) out.cause = world_->cause();
    out.until_us = out.cause && out.cause->at_us > 0 ? out.cause->at_us : flight_microseconds(world_->now());
    out.groups = known_groups();
    for (int rank = 0; rank < static_cast<int>(processes_->size()); ++rank) {
      const bool own = rank == number_;
      out.ranks.push_back({(*processes_)[static_cast<std::size_t>(rank)].number,
                           own ? rank_state::running : state_of(rank), history_of(rank, lane::caller),
                           history_of(rank, lane::stream)});
    }
    return out;
  }

 private:
  static constexpr std::size_t most_groups = 256;

  template <class Mine>
  void report_if(Mine mine) noexcept {
    try {
      const std::lock_guard lock(mutex_);  // a second thread goes on when the file is there
      const std::optional<std::string> folder = flight_folder();
      if (reported_ || !folder || !world_->aborted() || !mine()) return;
      reported_ = true;
      if (!is_written()) report_flight(snapshot(), *folder);
    } catch (...) {  // too little memory for the texts: the ranks' own errors have them
    }
  }
  // By another rank, as far as this machine can see.
  [[nodiscard]] bool is_written() const {
    const std::optional<std::string> folder = flight_folder();
    return folder && ::access(flight_path(*folder, job_, 0).c_str(), F_OK) == 0;
  }

  // All ranks have the same cause, so they agree, unless one of them is dead that the cause does not name.
  [[nodiscard]] int writer() const {
    const std::vector<int> culprits = world_->cause().culprits;
    const int other =
        lowest([&](int rank) { return std::find(culprits.begin(), culprits.end(), rank) == culprits.end(); });
    return other >= 0 ? other : lowest([](int) { return true; });
  }
  template <class Which>
  [[nodiscard]] int lowest(Which which) const {
    for (int rank = 0; rank < static_cast<int>(processes_->size()); ++rank) {
      if (which(rank) && (rank == number_ || process_of(rank) != process_state::gone)) return rank;
    }
    return -1;
  }

  [[nodiscard]] process_state process_of(int rank) const noexcept {
    return (*processes_)[static_cast<std::size_t>(rank)].state_seen_from(
        (*processes_)[static_cast<std::size_t>(number_)]);
  }
  [[nodiscard]] rank_state state_of(int rank) const {
    if (world_->history(lane::caller).exited(rank)) return rank_state::left;
    switch (process_of(rank)) {
      case process_state::running: return rank_state::running;
      case process_state::stopped: return rank_state::stopped;
      case process_state::gone: return rank_state::gone;
      case process_state::unknown: break;
    }
    return rank_state::unknown;
  }

  // Those that this rank has made; of others, itself and the ranks that have sent to it there.
  [[nodiscard]] std::vector<known_group> known_groups() const {
    std::vector<known_group> out = groups_;
    const auto find = [&](std::uint32_t number) {
      return std::find_if(out.begin(), out.end(), [&](const known_group& each) { return each.number == number; });
    };
    for (int rank = 0; rank < static_cast<int>(processes_->size()); ++rank) {
      for (lane which : all_lanes) {
        for (std::uint32_t number : world_->history(which).groups_with(rank)) {
          if (find(number) == out.end()) out.push_back({number, {number_}});
          std::vector<int>& members = find(number)->members;  // of one that this rank has made all are there
          if (std::find(members.begin(), members.end(), rank) == members.end()) members.push_back(rank);
        }
      }
    }
    return out;
  }

  // The last known operation may be over, except where it cannot be without this rank.
  [[nodiscard]] flight_history history_of(int rank, lane which) const {
    if (rank == number_) return flight_history(world_->recorder(which));
    std::vector<flight_record> known;
    const flight_history history = world_->history(which).of(rank);
    for (std::uint64_t i = history.first(); i < history.count(); ++i) known.push_back(history[i]);
    if (!known.empty() && known.back().reported && known.back().what != operation::exchange) {
      flight_record& last = known.back();
      const flight_record mine = last_like(flight_history(world_->recorder(which)), last);
      const bool behind = mine.what == operation::none || mine.number < last.number;
      if (behind || (mine.number == last.number && !mine.finished)) last.reported = false;
    }
    return {std::move(known), history.count()};
  }

  const world_status* world_;
  const std::vector<process>* processes_;
  int number_;
  std::uint64_t job_;
  std::mutex mutex_;
  std::vector<known_group> groups_;
  bool reported_ = false;
};

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
