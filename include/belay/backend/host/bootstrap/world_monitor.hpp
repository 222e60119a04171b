// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A world of processes, as the coordinator's process sees it: it keeps the control blocks, records how each rank ended,
// and tells the others of an end that the rank itself could not tell.
// IWYU pragma: private, include "belay/backend/host/processes.hpp"
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/run_report.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Used by the thread that runs the coordinator.
class world_monitor : public world_events {
 public:
  world_monitor(int ranks, const world_options& options);

  /// The control block's segment of the first epoch.
  [[nodiscard]] memory_segment& first_control_block() noexcept { return *segments_.front(); }
  /// The status of the present epoch.
  [[nodiscard]] const world_status& state() const noexcept { return *worlds_.back(); }
  /// The status of the first epoch that failed; null when none has.
  [[nodiscard]] const world_status* failed() const noexcept;
  /// The ranks of the present epoch, by their numbers at the start.
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }
  /// By rank at the start.
  [[nodiscard]] const std::vector<rank_outcome>& outcomes() const noexcept { return outcomes_; }

  /// The coordinator ends: from now on each call of a rank says why.
  void give_up(const std::string& why) noexcept;

  /// Called in the forked process that was to be `rank` of the first epoch, which shares this memory.
  void could_not_join(int rank, const std::string& why) noexcept;

  /// The number that a rank is called by: after a shrink, a survivor has another one than at the start.
  enum class numbering { at_start, of_epoch };
  /// "rank 2 (stopped, after barrier #3 at train.cpp:88) has been stopped for 30 s", of a rank by its number at the
  /// start.
  [[nodiscard]] std::string stall_text(int rank, numbering by) const;

  /// Calibrates when the first rank joins, while the others start; none has its answer yet.
  void on_join(int, pid_t) override;
  /// A failure whatever the rank does: before it joins, in its body, or after its goodbye, when its process is to end.
  void on_stall(int rank) override;
  void on_exit_message(int rank, const exit_message& last) override;
  void on_exit(int rank, exit_status how) override;
  [[nodiscard]] memory_segment& renew(const std::vector<int>& survivors) override;

 private:
  [[nodiscard]] std::optional<int> number_in_epoch(int rank) const;
  void abort(const abort_cause& why) noexcept;
  void print_report() const noexcept;
  void make_control_block(int ranks);

  world_options options_;
  std::vector<rank_outcome> outcomes_;
  std::vector<bool> said_goodbye_;
  std::vector<bool> stalled_;
  bool calibrated_ = false;
  std::vector<int> members_;  // of the present epoch, by their numbers at the start
  std::vector<std::unique_ptr<memory_segment>> segments_;
  std::vector<std::unique_ptr<world_status>> worlds_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/bootstrap/world_monitor.ipp"  // IWYU pragma: export
#endif
