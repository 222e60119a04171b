// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One side of a transfer between two ranks of a group.
//
//   const belay::p2p both[] = {belay::p2p::send(next, outgoing), belay::p2p::receive(previous, incoming)};
//   group.exchange(both);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "belay/comm/reduction.hpp"
#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// One side of a transfer between two ranks of a group. Sends and receives between a pair meet in the order in
/// which each side lists them; both sides must agree on bytes and tag.
struct p2p {
  /// Which way a transfer goes.
  enum class direction : std::uint8_t { send, receive };

  /// The direction, the memory and its bytes, and the number that both ends name. `peer` is a rank of the group.
  direction kind = direction::send;
  int peer = 0;  // a rank of the group
  void* data = nullptr;
  std::size_t bytes = 0;
  int tag = 0;

  /// The elements are only read; they stay unchanged until the exchange is over.
  template <class T>
    requires transferable<std::remove_const_t<T>>
  [[nodiscard]] static p2p send(int to, std::span<T> data, int tag = 0) noexcept {
    using plain = std::remove_const_t<T>;
    return {direction::send, to, const_cast<plain*>(data.data()), bytes_of(data), tag};
  }
  template <transferable T>
  [[nodiscard]] static p2p receive(int from, std::span<T> data, int tag = 0) noexcept {
    return {direction::receive, from, data.data(), bytes_of(data), tag};
  }

 private:
  // Too many stay too many: an exchange refuses them.
  template <class T>
  [[nodiscard]] static std::size_t bytes_of(std::span<T> data) noexcept {
    return (checked_size(data.size()) * sizeof(T)).saturated();
  }
};

/// The bytes of all of them, which were checked.
[[nodiscard]] constexpr std::size_t total_bytes(std::span<const p2p> transfers) noexcept {
  std::size_t all = 0;
  for (const p2p& one : transfers) all += one.bytes;
  return all;
}

}  // namespace belay::inline BELAY_ABI
