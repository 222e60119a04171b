// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that are threads: where their shared memory is, and how the survivors among them agree. Who shrinks waits
// until every rank has asked too or has left its body; one that does neither within the stall limit is left behind,
// and cannot harm the others, because they go on in memory that it does not know.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Shared by the threads of a world; outlives them.
class thread_membership final : public membership {
 public:
  thread_membership(int ranks, const world_options& options)
      : options_(options), left_(static_cast<std::size_t>(ranks)) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    begin_epoch(std::move(all));
  }

  /// The state of the first epoch.
  [[nodiscard]] control_block first() const { return epochs_.front()->shared; }

  /// What the thread of rank `number` starts with.
  [[nodiscard]] epoch_view enter(int number) {
    const std::lock_guard lock(mutex_);
    return standing_in(epochs_.front(), number);
  }

  /// After the last rank has left: what still holds a group of this world cannot call any more.
  void end() noexcept {
    for (const std::shared_ptr<epoch>& each : epochs_)
      world_status(each->shared).abort({comm_fault::revoked, {}, "the run of this world is over", ""});
  }

  void leave(const epoch_view& seat) noexcept override {
    const std::lock_guard lock(mutex_);
    left_[static_cast<std::size_t>(seat.number)] = true;
    changed_.notify_all();
  }

  [[nodiscard]] epoch_view shrink(const epoch_view& from, world_status::clock::duration limit, where at) override {
    std::unique_lock lock(mutex_);
    const std::size_t turn = from.world->shared().shape().epoch;
    const int number = from.members[static_cast<std::size_t>(from.number)];  // at the start
    epoch& now = *epochs_[turn];
    const auto until = world_status::clock::now() + std::min(limit, from.world->stall_limit());
    if (!now.closed) {
      now.asked.push_back(number);
      changed_.notify_all();
      changed_.wait_until(lock, until, [&] { return now.closed || all_known(now); });
      if (!now.closed) close(now);
    }
    const std::shared_ptr<epoch>& next = epochs_[turn + 1];
    const auto found = std::find(next->members.begin(), next->members.end(), number);
    if (found == next->members.end()) {
      comm_error::details what;
      what.fault = comm_fault::revoked;
      what.culprits = {number};
      what.operation = "shrink";
      what.here = at;
      what.message = "the others went on without rank " + std::to_string(number) + ", which did not ask within " +
                     std::to_string(std::chrono::duration<double>(from.world->stall_limit()).count()) + " s";
      throw comm_error(std::move(what));
    }
    return standing_in(next, static_cast<int>(found - next->members.begin()));
  }

 private:
  struct epoch {
    epoch(const control_shape& shape, std::vector<int> those)
        : memory(control_block::bytes_for(shape)),
          shared(control_block::make(memory.data(), shape)),
          members(std::move(those)) {}

    anonymous_memory memory;
    control_block shared;
    std::vector<int> members;  // numbers at the start
    std::vector<int> asked;
    bool closed = false;
  };

  [[nodiscard]] bool all_known(const epoch& now) const {
    return std::all_of(now.members.begin(), now.members.end(), [&](int number) {
      return left_[static_cast<std::size_t>(number)] ||
             std::find(now.asked.begin(), now.asked.end(), number) != now.asked.end();
    });
  }

  // One thread closes an epoch; who waits for it finds the same next one.
  void close(epoch& now) {
    std::sort(now.asked.begin(), now.asked.end());
    begin_epoch(now.asked);  // may throw: then the epoch stays open, and who else waits tries it again
    now.closed = true;
    world_status(now.shared).revoke();
    changed_.notify_all();
  }

  void begin_epoch(std::vector<int> members) {
    control_shape shape = control_shape_for(static_cast<int>(members.size()), address_space::one, options_);
    shape.epoch = static_cast<std::uint32_t>(epochs_.size());
    if (!epochs_.empty()) shape.job = epochs_.front()->shared.shape().job;
    epochs_.push_back(std::make_shared<epoch>(shape, std::move(members)));
    calibrate(epochs_.back()->shared, options_);
  }

  [[nodiscard]] epoch_view standing_in(const std::shared_ptr<epoch>& which, int number) const {
    struct kept {  // groups may outlive the run
      std::shared_ptr<const epoch> memory;
      world_status world;
    };
    const auto mine = std::make_shared<kept>(kept{which, world_status(which->shared)});
    mine->world.arrive(number, 0, core_set::allowed(), options_.spins);
    return {std::shared_ptr<world_status>(mine, &mine->world), std::make_shared<thread_regions>(), number,
            which->members};
  }

  world_options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> left_;  // by number at the start
  std::vector<std::shared_ptr<epoch>> epochs_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
