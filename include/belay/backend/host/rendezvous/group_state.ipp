// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How a rank finds or takes a group's memory.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>

#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

// Held briefly. A process may die while it holds the lock; then the world is aborted and no rank waits for it.
class group_directory::directory_lock {
 public:
  directory_lock(world_status& world, where at) : lock_(&world.shared().header().registry_lock) {
    for (std::uint32_t free = 0; !lock_->compare_exchange_weak(free, 1, std::memory_order_acquire); free = 0) {
      if (world.aborted() && holder_is_dead(world)) world.raise({operation::none, 0, 0, 0, at});
      ::sched_yield();
    }
  }
  directory_lock(const directory_lock&) = delete;
  directory_lock& operator=(const directory_lock&) = delete;
  ~directory_lock() { lock_->store(0, std::memory_order_release); }

 private:
  // A live process releases the lock shortly; a thread always does.
  [[nodiscard]] bool holder_is_dead(const world_status& world) noexcept {
    if (world.space() == address_space::one) return false;
    const auto now = world_status::clock::now();
    if (aborted_since_ == world_status::clock::time_point{}) aborted_since_ = now;
    return now - aborted_since_ > std::chrono::milliseconds(200);
  }

  std::atomic<std::uint32_t>* lock_;
  world_status::clock::time_point aborted_since_{};
};

BELAY_DECL group_directory::share group_directory::join(std::span<const int> members, where at) {
  std::vector<int> key(members.begin(), members.end());
  std::sort(key.begin(), key.end());
  check_members(key, world_->ranks(), rank_, at);
  const std::uint64_t generation = made_[key]++;
  const directory_lock lock(*world_, at);
  shared_group_entry* found = find(key, generation);
  if (found == nullptr) found = take(members, generation, at);
  std::byte* const memory = world_->shared().groups() + found->offset;
  if (!std::equal(members.begin(), members.end(), group_layout(memory, static_cast<int>(key.size())).members())) {
    throw usage_error("the ranks of a group were given in another order by another of its members", at);
  }
  return {found, memory};
}

BELAY_DECL void group_directory::release(const share& mine) noexcept {
  const std::uint32_t size = mine.entry->size;
  if (mine.entry->released.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
    mine.entry->state.store(free_again, std::memory_order_release);
  }
}

BELAY_DECL shared_group_entry* group_directory::find(const std::vector<int>& sorted, std::uint64_t generation) const {
  for (shared_group_entry& each : world_->shared().header().groups) {
    const std::uint32_t state = each.state.load(std::memory_order_acquire);
    if (state == unused) break;
    if (state != in_use || each.generation != generation || each.size != sorted.size()) continue;
    const std::int32_t* members =
        group_layout(world_->shared().groups() + each.offset, static_cast<int>(each.size)).members();
    std::vector<int> those(members, members + each.size);
    std::sort(those.begin(), those.end());
    if (those == sorted) return &each;
  }
  return nullptr;
}

BELAY_DECL shared_group_entry* group_directory::take(std::span<const int> members, std::uint64_t generation,
                                                     where at) const {
  control_header& header = world_->shared().header();
  const std::size_t needed = group_layout::bytes_for(static_cast<int>(members.size()));
  shared_group_entry* chosen = nullptr;
  for (shared_group_entry& each : header.groups) {
    const std::uint32_t state = each.state.load(std::memory_order_acquire);
    if (state == free_again && each.bytes == needed) {
      chosen = &each;
      break;
    }
    if (state != unused) continue;
    if (header.groups_used + needed <= world_->shared().shape().group_bytes) {
      each.offset = header.groups_used;
      each.bytes = needed;
      header.groups_used += needed;
      chosen = &each;
    }
    break;
  }
  if (chosen == nullptr) {
    throw usage_error(
        "too many groups at once: there is no room for one more of " + std::to_string(members.size()) + " ranks", at);
  }
  std::byte* const memory = world_->shared().groups() + chosen->offset;
  std::memset(memory, 0, needed);
  std::copy(members.begin(), members.end(), group_layout(memory, static_cast<int>(members.size())).members());
  chosen->size = static_cast<std::uint32_t>(members.size());
  chosen->generation = generation;
  chosen->id = header.next_group++;
  chosen->released.store(0, std::memory_order_relaxed);
  chosen->state.store(in_use, std::memory_order_release);
  return chosen;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
