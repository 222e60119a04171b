// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The heap of a group: symmetric memory where its ranks reach each other's; memory of this rank alone where they send
// each other what is in it.
// IWYU pragma: private, include "belay/comm.hpp"
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "belay/comm/communicator.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Stands for the symmetric memory of groups that have none.
struct no_symmetric_heap {
  explicit no_symmetric_heap(const auto&...) noexcept {}
  /// Nothing is leased of it.
  void follow(const auto&) noexcept {}
  [[nodiscard]] static std::size_t live_bytes() noexcept { return 0; }
  [[nodiscard]] static std::size_t peak_bytes() noexcept { return 0; }
  [[nodiscard]] static std::size_t extent_bytes() noexcept { return 0; }
};

/// The type of a group's heap, and the ranks that it is made of.
template <class Group>
struct heap_of {
  using type = no_symmetric_heap;
  [[nodiscard]] static const Group& ranks(const Group& group) noexcept { return group; }
};
template <has_symmetric_memory Group>
struct heap_of<Group> {
  using type = symmetric_heap<Group>;
  [[nodiscard]] static const Group& ranks(const Group& group) noexcept { return group; }
};
template <has_local_memory Group>
struct heap_of<Group> {
  using local_type = std::remove_cvref_t<decltype(std::declval<const Group&>().local_memory())>;
  using type = symmetric_heap<local_type>;
  [[nodiscard]] static local_type ranks(const Group& group) { return group.local_memory(); }
};

}  // namespace belay::inline BELAY_ABI
