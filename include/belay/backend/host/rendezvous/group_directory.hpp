// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The directory in which the ranks of a group find the memory that they share. Ranks create groups independently; the
// k-th group that a rank makes of a set of members is the k-th that every other member makes of it. The first of them
// takes the memory.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's view of the directory of groups. Used by the rank's own thread.
class group_directory {
 public:
  group_directory(world_status& world, int rank) noexcept : world_(&world), rank_(rank) {}
  group_directory(const group_directory&) = delete;
  group_directory& operator=(const group_directory&) = delete;

  /// A share in a group's memory; given back by `release`.
  struct share {
    shared_group_entry* entry;
    std::byte* memory;
  };

  /// Room for the groups of a world: a few of all its ranks and many small ones.
  [[nodiscard]] static std::size_t room_for(int ranks) noexcept {
    return 8 * group_layout::bytes_for(ranks) + static_cast<std::size_t>(16 + 4 * ranks) * group_layout::bytes_for(2);
  }

  /// The next group that this rank makes of `members` (ranks of the world, in group order, this one among them).
  [[nodiscard]] share join(std::span<const int> members, where at) {
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

  /// The last share to be released frees the memory for another group.
  static void release(const share& mine) noexcept {
    const std::uint32_t size = mine.entry->size;
    if (mine.entry->released.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
      mine.entry->state.store(free_again, std::memory_order_release);
    }
  }

 private:
  enum : std::uint32_t { unused = 0, in_use = 1, free_again = 2 };

  // Held briefly. A process may die while it holds the lock; then the world is aborted and no rank waits for it.
  class directory_lock {
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

  [[nodiscard]] shared_group_entry* find(const std::vector<int>& key, std::uint64_t generation) const {
    control_header& header = world_->shared().header();
    for (shared_group_entry& each : header.groups) {
      const std::uint32_t state = each.state.load(std::memory_order_acquire);
      if (state == unused) break;
      if (state != in_use || each.generation != generation || each.size != key.size()) continue;
      const std::int32_t* members =
          group_layout(world_->shared().groups() + each.offset, static_cast<int>(each.size)).members();
      std::vector<int> those(members, members + each.size);
      std::sort(those.begin(), those.end());
      if (those == key) return &each;
    }
    return nullptr;
  }

  [[nodiscard]] shared_group_entry* take(std::span<const int> members, std::uint64_t generation, where at) const {
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

  world_status* world_;
  int rank_;
  std::map<std::vector<int>, std::uint64_t> made_;
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI
