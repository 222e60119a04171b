// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Epochs of a world of threads.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>

#include "belay/backend/host/membership/thread_membership.hpp"
#include "belay/comm/event_count.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

BELAY_DECL anonymous_memory::anonymous_memory(std::size_t bytes, where at) : bytes_(bytes) {
  void* const first =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (first == MAP_FAILED) throw budget_error("address space", bytes, 0, at);
  first_ = static_cast<std::byte*>(first);
}
BELAY_DECL anonymous_memory::~anonymous_memory() { ::munmap(first_, bytes_); }

struct thread_membership::epoch {
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

BELAY_DECL thread_membership::thread_membership(int ranks, const world_options& options)
    : options_(options), left_(static_cast<std::size_t>(ranks)) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  begin_epoch(std::move(all));
}

BELAY_DECL control_block thread_membership::first() const { return epochs_.front()->shared; }

BELAY_DECL epoch_view thread_membership::enter(int number) {
  const std::lock_guard lock(mutex_);
  return view_of(epochs_.front(), number);
}

BELAY_DECL void thread_membership::end() noexcept {
  for (const std::shared_ptr<epoch>& each : epochs_)
    world_status(each->shared, options_.clock).abort({comm_fault::revoked, {}, "the run of this world is over", ""});
}

BELAY_DECL void thread_membership::note_exit(const epoch_view& view) noexcept {
  const std::lock_guard lock(mutex_);
  left_[static_cast<std::size_t>(view.number)] = true;
  changed_.notify_all();
}

BELAY_DECL epoch_view thread_membership::shrink(const epoch_view& from, world_status::clock::duration limit, where at) {
  std::unique_lock lock(mutex_);
  const std::size_t present = from.world->shared().shape().epoch;
  const int number = from.members[static_cast<std::size_t>(from.number)];  // at the start
  epoch& now = *epochs_[present];
  const auto until = from.world->now() + lesser_of(limit, from.world->stall_limit());
  if (!now.closed) {
    now.asked.push_back(number);
    changed_.notify_all();
    const auto decided = [&] { return now.closed || all_known(now); };
    while (!decided()) {
      const auto left = time_to_sleep(until, options_.clock);
      if (left.count() == 0) break;
      changed_.wait_for(lock, left, decided);
    }
    if (!now.closed) close(now);
  }
  const std::shared_ptr<epoch>& next = epochs_[present + 1];
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
  return view_of(next, static_cast<int>(found - next->members.begin()));
}

BELAY_DECL bool thread_membership::all_known(const epoch& now) const {
  return std::all_of(now.members.begin(), now.members.end(), [&](int number) {
    return left_[static_cast<std::size_t>(number)] ||
           std::find(now.asked.begin(), now.asked.end(), number) != now.asked.end();
  });
}

// One thread closes an epoch; the others that wait for it find the same next one.
BELAY_DECL void thread_membership::close(epoch& now) {
  std::sort(now.asked.begin(), now.asked.end());
  begin_epoch(now.asked);  // may throw: then the epoch stays open, and another waiting thread tries again
  now.closed = true;
  world_status(now.shared, options_.clock).revoke();
  changed_.notify_all();
}

BELAY_DECL void thread_membership::begin_epoch(std::vector<int> members) {
  control_shape shape = control_shape_for(static_cast<int>(members.size()), address_space::one, options_);
  shape.epoch = static_cast<std::uint32_t>(epochs_.size());
  if (!epochs_.empty()) shape.job = epochs_.front()->shared.shape().job;
  epochs_.push_back(std::make_shared<epoch>(shape, std::move(members)));
  calibrate(epochs_.back()->shared, options_);
}

BELAY_DECL epoch_view thread_membership::view_of(const std::shared_ptr<epoch>& which, int number) const {
  struct group_segment {  // groups may outlive the run
    std::shared_ptr<const epoch> memory;
    world_status world;
  };
  const auto mine = std::make_shared<group_segment>(group_segment{which, world_status(which->shared, options_.clock)});
  mine->world.arrive(number, 0, core_set::allowed(), options_.spins);
  return {std::shared_ptr<world_status>(mine, &mine->world), std::make_shared<thread_regions>(), number,
          which->members};
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
