// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that are processes, as one of them sees it: it has come through a doorway, its shared memory is kept by the
// holder, and the holder leads the survivors to one list.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/client.hpp"
#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/membership/membership.hpp"
#include "belay/backend/host/memory/memory_segment.hpp"
#include "belay/backend/host/memory/region_provider.hpp"
#include "belay/core/config.hpp"
#include "belay/core/core_set.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Regions that the holder keeps. One that this rank has given up stays mapped here until all ranks of its group have:
/// a peer that still has it may name memory in it, and asks nobody before. Then it is told to the holder with the next
/// request, because the end of a region is a destructor and does not talk.
class process_regions final : public region_provider, public std::enable_shared_from_this<process_regions> {
 public:
  process_regions(std::shared_ptr<client> coordinator, std::shared_ptr<const world_status> world) noexcept
      : region_provider(address_space::several), holder_(std::move(coordinator)), world_(std::move(world)) {}

  [[nodiscard]] symmetric_region make(int ranks, std::size_t bytes, where at) override {
    const std::size_t stride = symmetric_region::stride_for(ranks, bytes, at);
    if (stride == 0) return {};
    tell_retired(at);
    client::region made =
        holder_->make_region(stride * static_cast<std::size_t>(ranks) + sizeof(region_end), until(), at);
    last_ = made.id;
    return adopt(std::move(made), ranks, stride, at);
  }
  [[nodiscard]] ticket ticket_for(const symmetric_region& made) const override {
    return {made.at(0) == nullptr ? 0 : last_, 0, 0};
  }
  [[nodiscard]] symmetric_region open(const ticket& from, int ranks, std::size_t bytes, where at) override {
    const std::size_t stride = symmetric_region::stride_for(ranks, bytes, at);
    if (stride == 0) return {};
    tell_retired(at);
    client::region found{from.region, holder_->attach_region(from.region, until(), at)};
    if (found.memory.size_bytes() < stride * static_cast<std::size_t>(ranks) + sizeof(region_end)) {
      throw input_error("region " + std::to_string(from.region) + " is smaller than its group says", at);
    }
    return adopt(std::move(found), ranks, stride, at);
  }

 private:
  // Behind the ranks' parts.
  struct region_end {
    std::atomic<std::uint32_t> given_up{0};  // by so many ranks
  };
  // This rank's share of a region, and those that it has given up.
  struct share_of_region {
    std::shared_ptr<process_regions> from;  // until it is given up
    client::region region;
    region_end* end;
    std::uint32_t ranks;
    std::unique_ptr<share_of_region> next;

    [[nodiscard]] bool is_over() const noexcept { return end->given_up.load(std::memory_order_acquire) >= ranks; }
  };

  [[nodiscard]] time_point until() const { return std::chrono::steady_clock::now() + world_->timeout(); }

  symmetric_region adopt(client::region found, int ranks, std::size_t stride, where at) {
    if (found.id == 0 || found.id > std::numeric_limits<std::uint16_t>::max()) {
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

  // Where the world has stopped nobody names memory any more. A forked child gives up its copy, not the rank's share.
  void give_up(std::unique_ptr<share_of_region> mine) noexcept {
    if (!world_->in_own_process()) return;
    mine->end->given_up.fetch_add(1, std::memory_order_acq_rel);
    const std::lock_guard lock(mutex_);
    mine->next = std::move(given_up_);
    given_up_ = std::move(mine);
    unmap_what_is_over();
  }
  void unmap_what_is_over() noexcept {
    std::unique_ptr<share_of_region>* link = &given_up_;
    while (*link) {
      if (!(*link)->is_over() && !world_->aborted()) {
        link = &(*link)->next;
        continue;
      }
      const std::uint64_t id = (*link)->region.id;
      memory_.remove(static_cast<std::uint16_t>(id));
      if (retired_count_ < std::size(retired_)) retired_[retired_count_++] = id;  // more is told by our end
      *link = std::move((*link)->next);
    }
  }
  void tell_retired(where at) {
    std::uint64_t ids[std::size(decltype(retired_){})];
    std::size_t count = 0;
    {
      const std::lock_guard lock(mutex_);
      unmap_what_is_over();
      count = std::exchange(retired_count_, 0);
      std::copy(retired_, retired_ + count, ids);
    }
    for (std::size_t i = 0; i < count; ++i) holder_->drop_region(ids[i], until(), at);
  }

  std::shared_ptr<client> holder_;
  std::shared_ptr<const world_status> world_;
  std::uint64_t last_ = 0;
  std::mutex mutex_;
  std::unique_ptr<share_of_region> given_up_;  // and still mapped
  std::uint64_t retired_[256] = {};
  std::size_t retired_count_ = 0;
};

/// This process's membership in a world of processes.
class process_member final : public membership {
 public:
  /// Over a guest that has just entered.
  process_member(std::shared_ptr<client> coordinator, int spins) : holder_(std::move(coordinator)), spins_(spins) {
    segment_ = std::make_shared<memory_segment>(std::move(holder_->control_block()));
    segment_->keep_from_children();  // they are no ranks, and release builds do not look at each call
  }

  /// What it starts with. Throws input_error when the holder speaks of another world.
  [[nodiscard]] epoch_view enter() {
    const control_block shared = control_block::attach(segment_->data(), segment_->size_bytes());
    if (shared.shape().ranks != holder_->size()) {
      throw input_error("this process is one of " + std::to_string(holder_->size()) + " ranks, and the world has " +
                        std::to_string(shared.shape().ranks));
    }
    std::vector<int> all(static_cast<std::size_t>(shared.shape().ranks));
    std::iota(all.begin(), all.end(), 0);
    epoch_view out = seat_in(shared, holder_->rank(), std::move(all));
    if (out.number == 0 && !out.world->reads_others(0)) {
      std::fputs(
          "belay: the kernel does not let ranks read each other's memory (process_vm_readv): buffers that are not "
          "symmetric go through staging\n",
          stderr);
    }
    return out;
  }

  [[nodiscard]] epoch_view shrink(const epoch_view& from, world_status::clock::duration limit, where at) override {
    client::renewed next = holder_->shrink(std::chrono::steady_clock::now() + limit, at);
    from.world->revoke();
    segment_ = std::make_shared<memory_segment>(std::move(next.control_block));
    segment_->keep_from_children();
    const control_block shared = control_block::attach(segment_->data(), segment_->size_bytes());
    return seat_in(shared, next.rank, std::move(next.members));
  }

  /// Peers see it by its goodbye, or by its end.
  void leave(const epoch_view&) noexcept override {}

  [[nodiscard]] client& coordinator() noexcept { return *holder_; }

  /// The holder's process is gone: nothing can be made or agreed on any more. From any thread.
  void lose_holder(const std::string& why) noexcept {
    const std::lock_guard lock(mutex_);
    if (!present_) return;
    present_->abort({comm_fault::peer_failed, {0}, why, present_->site_of(0, lane::caller)});
    report_failure_once(*present_);  // nobody else is left to do it
  }

 private:
  [[nodiscard]] epoch_view seat_in(control_block shared, int number, std::vector<int> members) {
    struct kept {  // groups may outlive the epoch, and the run
      std::shared_ptr<memory_segment> memory;
      world_status world;
    };
    const auto mine = std::make_shared<kept>(kept{segment_, world_status(shared)});
    const std::shared_ptr<world_status> world(mine, &mine->world);
    world->arrive(number, ::getpid(), core_set::allowed(), spins_);
    {
      const std::lock_guard lock(mutex_);
      present_ = world;
    }
    return {world, std::make_shared<process_regions>(holder_, world), number, std::move(members)};
  }

  std::shared_ptr<client> holder_;
  int spins_;
  std::mutex mutex_;
  std::shared_ptr<world_status> present_;
  std::shared_ptr<memory_segment> segment_;  // of the present epoch
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
