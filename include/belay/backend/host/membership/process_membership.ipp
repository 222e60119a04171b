// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Regions and epochs of a rank that is a process.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <new>
#include <numeric>

#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/membership/process_membership.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/error.hpp"
#include "belay/core/process.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// Behind the ranks' parts of a region.
struct process_regions::region_end {
  std::atomic<std::uint32_t> given_up{0};  // by so many ranks
};

// This rank's share of a region, and those that it has given up.
struct process_regions::share_of_region {
  std::shared_ptr<process_regions> from;  // until it is given up
  client::region region;
  region_end* end;
  std::uint32_t ranks;
  std::unique_ptr<share_of_region> next;

  [[nodiscard]] bool unused() const noexcept { return end->given_up.load(std::memory_order_acquire) >= ranks; }
};

BELAY_DECL process_regions::process_regions(std::shared_ptr<client> coordinator,
                                            std::shared_ptr<const world_status> world) noexcept
    : region_provider(address_space::several), client_(std::move(coordinator)), world_(std::move(world)) {}
BELAY_DECL process_regions::~process_regions() = default;

BELAY_DECL symmetric_region process_regions::make(int ranks, std::size_t bytes, where at) {
  const std::size_t stride = symmetric_region::stride_for(ranks, bytes, at);
  if (stride == 0) return {};
  drop_retired(at);
  client::region made =
      client_->make_region(stride * static_cast<std::size_t>(ranks) + sizeof(region_end), until(), at);
  last_ = made.id;
  return adopt(std::move(made), ranks, stride, at);
}

BELAY_DECL process_regions::ticket process_regions::ticket_for(const symmetric_region& made) const {
  return {made.at(0) == nullptr ? 0 : last_, 0, 0};
}

BELAY_DECL symmetric_region process_regions::open(const ticket& from, int ranks, std::size_t bytes, where at) {
  const std::size_t stride = symmetric_region::stride_for(ranks, bytes, at);
  if (stride == 0) return {};
  drop_retired(at);
  client::region found{from.region, client_->attach_region(from.region, until(), at)};
  if (found.memory.size_bytes() < stride * static_cast<std::size_t>(ranks) + sizeof(region_end)) {
    throw input_error("region " + std::to_string(from.region) + " is smaller than its group says", at);
  }
  return adopt(std::move(found), ranks, stride, at);
}

BELAY_DECL symmetric_region process_regions::adopt(client::region found, int ranks, std::size_t stride, where at) {
  if (found.id == 0 || found.id > largest_value<std::uint16_t>) {
    throw usage_error("more than 65535 regions of symmetric memory in one run", at);
  }
  std::byte* const first = found.memory.data();
  const std::size_t bytes = stride * static_cast<std::size_t>(ranks);
  memory_.add(static_cast<std::uint16_t>(found.id), first, bytes, at);
  auto* const end = std::launder(reinterpret_cast<region_end*>(first + bytes));  // fresh pages are zeros
  auto* const mine =
      new share_of_region{shared_from_this(), std::move(found), end, static_cast<std::uint32_t>(ranks), {}};
  return symmetric_region::adopt(ranks, stride, first, mine, [](void* context) noexcept {
    std::unique_ptr<share_of_region> over(static_cast<share_of_region*>(context));
    const std::shared_ptr<process_regions> from = std::move(over->from);
    from->give_up(std::move(over));
  });
}

// A forked child gives up its copy, not the rank's share.
BELAY_DECL void process_regions::give_up(std::unique_ptr<share_of_region> mine) noexcept {
  if (!world_->in_own_process()) return;
  mine->end->given_up.fetch_add(1, std::memory_order_acq_rel);
  const std::lock_guard lock(mutex_);
  mine->next = std::move(given_up_);
  given_up_ = std::move(mine);
  unmap_unused();
}

// In a world that has aborted no rank names memory any more.
BELAY_DECL void process_regions::unmap_unused() noexcept {
  std::unique_ptr<share_of_region>* link = &given_up_;
  while (*link) {
    if (!(*link)->unused() && !world_->aborted()) {
      link = &(*link)->next;
      continue;
    }
    const std::uint64_t id = (*link)->region.id;
    memory_.remove(static_cast<std::uint16_t>(id));
    if (retired_count_ < std::size(retired_)) retired_[retired_count_++] = id;  // the rest goes with this process
    *link = std::move((*link)->next);
  }
}

BELAY_DECL void process_regions::drop_retired(where at) {
  std::uint64_t ids[std::size(decltype(retired_){})];
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    unmap_unused();
    count = std::exchange(retired_count_, 0);
    std::copy(retired_, retired_ + count, ids);
  }
  for (std::size_t i = 0; i < count; ++i) client_->drop_region(ids[i], until(), at);
}

BELAY_DECL process_membership::process_membership(client joined, int spins)
    : client_(std::make_shared<client>(std::move(joined))), spins_(spins) {
  segment_ = std::make_shared<memory_segment>(std::move(client_->control_block()));
  segment_->keep_from_children();  // they are no ranks, and release builds do not look at each call
}

BELAY_DECL epoch_view process_membership::enter() {
  const control_block shared = control_block::attach(segment_->data(), segment_->size_bytes());
  if (shared.shape().ranks != client_->size()) {
    throw input_error("this process is one of " + std::to_string(client_->size()) + " ranks, and the world has " +
                      std::to_string(shared.shape().ranks));
  }
  std::vector<int> all(static_cast<std::size_t>(shared.shape().ranks));
  std::iota(all.begin(), all.end(), 0);
  epoch_view out = view_of(shared, client_->rank(), std::move(all));
  if (out.number == 0 && !out.world->reads_others(0)) {
    std::fputs(
        "belay: the kernel does not let ranks read each other's memory (process_vm_readv): buffers that are not "
        "symmetric go through staging\n",
        stderr);
  }
  return out;
}

BELAY_DECL epoch_view process_membership::shrink(const epoch_view& from, world_status::clock::duration limit,
                                                 where at) {
  client::renewed next = client_->shrink(from.world->now() + limit, at);
  from.world->revoke();
  segment_ = std::make_shared<memory_segment>(std::move(next.control_block));
  segment_->keep_from_children();
  const control_block shared = control_block::attach(segment_->data(), segment_->size_bytes());
  return view_of(shared, next.rank, std::move(next.members));
}

BELAY_DECL void process_membership::lose_coordinator(const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!present_) return;
  present_->abort({comm_fault::peer_failed, {0}, why, present_->site_of(0, lane::caller)});
  report_failure_once(*present_);  // no other process is left to do it
}

BELAY_DECL epoch_view process_membership::view_of(control_block shared, int number, std::vector<int> members) {
  struct group_segment {  // groups may outlive the epoch, and the run
    std::shared_ptr<memory_segment> memory;
    world_status world;
  };
  const auto mine = std::make_shared<group_segment>(group_segment{segment_, world_status(shared, client_->time())});
  const std::shared_ptr<world_status> world(mine, &mine->world);
  world->arrive(number, ::getpid(), core_set::allowed(), spins_);
  {
    const std::lock_guard lock(mutex_);
    present_ = world;
  }
  return {world, std::make_shared<process_regions>(client_, world), number, std::move(members)};
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
