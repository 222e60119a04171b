// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Any rank of any world, without the others: its communication returns at once and moves nothing. The plan runs the
// real step with it, so that sizes and orders come from the code that will run and not from a second description of
// it. Its symmetric memory has addresses and no pages.
//
//   belay::rehearsal::rank rank(0, 1024);           // of a world that does not exist
//   const belay::rehearsal::group world = rank.world();
//   world.all_reduce(std::span(grad), belay::sum);  // returns at once; `grad` is not touched
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/group_operations.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace rehearsal {

/// Has the operations of a backend's group. None touches the memory it is given, fails or waits; a started one is
/// ready.
class group : public group_operations<group> {
 public:
  static constexpr bool moves_nothing = true;
  static constexpr bool sums_in_rank_order = true;
  static constexpr bool has_varying_counts = true;

  group(std::vector<int> members, int rank) noexcept : members_(std::move(members)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::span<const int> members() const noexcept { return {members_.data(), members_.size()}; }

  /// Distinct addresses for every rank that must not be read or written.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    return symmetric_region::map(size(), bytes, backing::addresses_only, at);
  }

 private:
  friend class group_operations<group>;

  template <operation What, class... Arguments>
  void run(const buffer_use&, const where&, const Arguments&...) const noexcept {}
  template <operation What, class... Arguments>
  [[nodiscard]] pending start(const buffer_use&, const where& at, const Arguments&...) const noexcept {
    return pending(nullptr, 0, What, at);
  }

  std::vector<int> members_;
  int rank_;
};

/// Rank `number` of a world of `size` that does not exist.
class rank {
 public:
  using group_type = rehearsal::group;

  rank(int number, int size, where at = where::current()) : number_(number), size_(size) {
    if (size < 1 || number < 0 || number >= size) {
      throw usage_error("rank " + std::to_string(number) + " of a world of " + std::to_string(size), at);
    }
    for (int peer = 0; peer < size; ++peer) all_ranks_.push_back(peer);
  }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] rehearsal::group world() const { return {all_ranks_, number_}; }
  [[nodiscard]] rehearsal::group group(std::span<const int> members, where at = where::current()) const {
    std::size_t place = 0;
    while (place < members.size() && members[place] != number_) ++place;
    if (place == members.size()) {
      throw usage_error("rank " + std::to_string(number_) + " makes a group that it is not in", at);
    }
    return {std::vector<int>(members.data(), members.data() + members.size()), static_cast<int>(place)};
  }
  [[nodiscard]] static constexpr std::uint64_t abandoned() noexcept { return 0; }

  /// The groups that the body has asked of its meshes. A rank of a real world to which it is given makes them at once.
  [[nodiscard]] mesh_record& meshes() noexcept { return meshes_; }

 private:
  int number_;
  int size_;
  std::vector<int> all_ranks_;
  mesh_record meshes_;
};

static_assert(has_groups<rank> && has_mesh_record<rank> && moves_nothing<group> && directly_addressable<group> &&
              has_all_operations<group>);

}  // namespace rehearsal
}  // namespace belay::inline BELAY_ABI
