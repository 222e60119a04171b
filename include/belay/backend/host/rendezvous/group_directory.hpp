// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The directory in which the ranks of a group find the memory that they share. Ranks create groups independently; the
// k-th group that a rank makes of a set of members is the k-th that every other member makes of it. The first of them
// takes the memory.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "belay/backend/host/failure/world_status.hpp"
#include "belay/backend/host/memory/control_block.hpp"
#include "belay/backend/host/rendezvous/group_layout.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's view of the directory of groups. Used by the rank's own thread.
class group_directory {
 public:
  group_directory(world_status& world, int rank) noexcept : world_(&world), rank_(rank) {}
  group_directory(const group_directory&) = delete;
  group_directory& operator=(const group_directory&) = delete;

  /// A share in a group's memory, until `release`.
  struct share {
    shared_group_entry* entry;
    std::byte* memory;
  };

  /// Room for the groups of a world: a few of all its ranks and many small ones.
  [[nodiscard]] static std::size_t room_for(int ranks) noexcept {
    return 8 * group_layout::bytes_for(ranks) + static_cast<std::size_t>(16 + 4 * ranks) * group_layout::bytes_for(2);
  }

  /// The next group that this rank makes of `members` (ranks of the world, in group order, this one among them).
  [[nodiscard]] share join(std::span<const int> members, where at);
  /// The last share to be released frees the memory for another group.
  static void release(const share& mine) noexcept;

 private:
  enum : std::uint32_t { unused = 0, in_use = 1, free_again = 2 };
  class directory_lock;

  [[nodiscard]] shared_group_entry* find(const std::vector<int>& sorted, std::uint64_t generation) const;
  [[nodiscard]] shared_group_entry* take(std::span<const int> members, std::uint64_t generation, where at) const;

  world_status* world_;
  int rank_;
  std::map<std::vector<int>, std::uint64_t> made_;  // how many, of each set of members
};

}  // namespace host
}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/backend/host/rendezvous/group_directory.ipp"  // IWYU pragma: export
#endif
