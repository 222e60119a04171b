// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank that nobody else is there for: any rank of any world, whose communication returns at once and moves
// nothing. The plan walks the real step with it, so that sizes and orders come from the code that will run
// and not from a second description of it. Its symmetric memory has addresses and no pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace rehearsal {

/// Satisfies what a backend's group does. No operation touches the memory it is given, fails or waits; a
/// started one is ready.
class group {
 public:
  static constexpr bool moves_nothing = true;

  group(std::vector<int> members, int rank) noexcept : members_(std::move(members)), rank_(rank) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::span<const int> members() const noexcept { return {members_.data(), members_.size()}; }

  void barrier(where = where::current()) const noexcept {}

  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<T>, Op, where = where::current()) const noexcept {}
  template <reducible T, reduction_tag Op>
  void reduce_scatter(std::span<const std::type_identity_t<T>>, std::span<T>, Op,
                      where = where::current()) const noexcept {}
  template <reducible T, reduction_tag Op>
  void reduce_scatter_v(std::span<T>, std::span<const std::size_t>, Op, where = where::current()) const noexcept {}
  template <transferable T>
  void all_gather(std::span<const std::type_identity_t<T>>, std::span<T>, where = where::current()) const noexcept {}
  template <transferable T>
  void all_gather_v(std::span<T>, std::span<const std::size_t>, where = where::current()) const noexcept {}
  template <transferable T>
  void all_to_all(std::span<const std::type_identity_t<T>>, std::span<T>, where = where::current()) const noexcept {}
  template <transferable T>
  void all_to_all_v(std::span<const std::type_identity_t<T>>, std::span<const std::size_t>, std::span<T>,
                    std::span<const std::size_t>, where = where::current()) const noexcept {}
  template <transferable T>
  void broadcast(std::span<T>, int, where = where::current()) const noexcept {}
  template <reducible T, reduction_tag Op>
  void reduce(std::span<T>, Op, int, where = where::current()) const noexcept {}
  template <transferable T>
  void gather(std::span<const std::type_identity_t<T>>, std::span<T>, int, where = where::current()) const noexcept {}
  template <transferable T>
  void scatter(std::span<const std::type_identity_t<T>>, std::span<T>, int, where = where::current()) const noexcept {}
  void exchange(std::span<const p2p>, where = where::current()) const noexcept {}
  template <class T>
  requires transferable<std::remove_const_t<T>>
  void send(int, std::span<T>, int = 0, where = where::current()) const noexcept {}
  template <transferable T>
  void receive(int, std::span<T>, int = 0, where = where::current()) const noexcept {}

  pending start_barrier(where at = where::current()) const noexcept { return over(operation::barrier, at); }
  template <reducible T, reduction_tag Op>
  pending start_all_reduce(std::span<T>, Op, where at = where::current()) const noexcept {
    return over(operation::all_reduce, at);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter(std::span<const std::type_identity_t<T>>, std::span<T>, Op,
                               where at = where::current()) const noexcept {
    return over(operation::reduce_scatter, at);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter_v(std::span<T>, std::span<const std::size_t>, Op,
                                 where at = where::current()) const noexcept {
    return over(operation::reduce_scatter_v, at);
  }
  template <transferable T>
  pending start_all_gather(std::span<const std::type_identity_t<T>>, std::span<T>,
                           where at = where::current()) const noexcept {
    return over(operation::all_gather, at);
  }
  template <transferable T>
  pending start_all_gather_v(std::span<T>, std::span<const std::size_t>, where at = where::current()) const noexcept {
    return over(operation::all_gather_v, at);
  }
  template <transferable T>
  pending start_all_to_all(std::span<const std::type_identity_t<T>>, std::span<T>,
                           where at = where::current()) const noexcept {
    return over(operation::all_to_all, at);
  }
  template <transferable T>
  pending start_all_to_all_v(std::span<const std::type_identity_t<T>>, std::span<const std::size_t>, std::span<T>,
                             std::span<const std::size_t>, where at = where::current()) const noexcept {
    return over(operation::all_to_all_v, at);
  }
  template <transferable T>
  pending start_broadcast(std::span<T>, int, where at = where::current()) const noexcept {
    return over(operation::broadcast, at);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce(std::span<T>, Op, int, where at = where::current()) const noexcept {
    return over(operation::reduce, at);
  }
  template <transferable T>
  pending start_gather(std::span<const std::type_identity_t<T>>, std::span<T>, int,
                       where at = where::current()) const noexcept {
    return over(operation::gather, at);
  }
  template <transferable T>
  pending start_scatter(std::span<const std::type_identity_t<T>>, std::span<T>, int,
                        where at = where::current()) const noexcept {
    return over(operation::scatter, at);
  }
  pending start_exchange(std::span<const p2p>, where at = where::current()) const noexcept {
    return over(operation::exchange, at);
  }

  /// Distinct addresses for every rank that must not be read or written.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    return symmetric_region::map(size(), bytes, backing::addresses_only, at);
  }

 private:
  static pending over(operation what, where at) noexcept { return pending(nullptr, 0, what, at); }

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
    for (int peer = 0; peer < size; ++peer) everybody_.push_back(peer);
  }

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] rehearsal::group world() const { return {everybody_, number_}; }
  [[nodiscard]] rehearsal::group group(std::span<const int> members, where at = where::current()) const {
    std::size_t place = 0;
    while (place < members.size() && members[place] != number_) ++place;
    if (place == members.size()) {
      throw usage_error("rank " + std::to_string(number_) + " makes a group that it is not in", at);
    }
    return {std::vector<int>(members.data(), members.data() + members.size()), static_cast<int>(place)};
  }
  [[nodiscard]] static constexpr std::uint64_t abandoned() noexcept { return 0; }

 private:
  int number_;
  int size_;
  std::vector<int> everybody_;
};

static_assert(has_groups<rank> && moves_nothing<group> && directly_addressable<group>);
static_assert(can_all_reduce<group, float> && can_reduce_scatter<group, float> && can_reduce_scatter_v<group, float> &&
              can_reduce<group, float> && can_all_gather<group, float> && can_all_gather_v<group, float> &&
              can_all_to_all<group, float> && can_all_to_all_v<group, float> && can_broadcast<group, float> &&
              can_gather<group, float> && can_scatter<group, float> && can_exchange<group>);
static_assert(can_start_barrier<group> && can_start_all_reduce<group, float> &&
              can_start_reduce_scatter<group, float> && can_start_reduce_scatter_v<group, float> &&
              can_start_reduce<group, float> && can_start_all_gather<group, float> &&
              can_start_all_gather_v<group, float> && can_start_all_to_all<group, float> &&
              can_start_all_to_all_v<group, float> && can_start_broadcast<group, float> &&
              can_start_gather<group, float> && can_start_scatter<group, float> && can_start_exchange<group>);

}  // namespace rehearsal
}  // namespace belay::inline BELAY_ABI
