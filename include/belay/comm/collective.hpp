// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The operations as free functions over any communicator. They take anything contiguous, and where a
// communicator or an element type cannot do what is asked they say so in a sentence. For the contracts see
// the operations of a group; these add nothing to them.
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The elements of a container, an array, a span or a view.
template <class T, std::size_t Rank>
[[nodiscard]] constexpr std::span<T> elements_of(view<T, Rank> of) noexcept {
  return of.flat();
}
template <class Buffer>
requires requires(Buffer& of) { std::span(of); }
[[nodiscard]] constexpr auto elements_of(Buffer& of) noexcept {
  const std::span all(of);
  return std::span<typename decltype(all)::element_type>(all);
}

/// Anything with elements that lie side by side.
template <class Buffer>
concept contiguous_buffer = requires(Buffer& of) {
  elements_of(of);
};

template <contiguous_buffer Buffer>
using element_of = typename decltype(elements_of(std::declval<Buffer&>()))::element_type;

// What a reduction needs, in words; what only the communicator lacks is said by the operation itself.
template <class T, class Op>
constexpr bool is_reduction() {
  static_assert(reduction_tag<Op>,
                "a reduction is belay::sum, belay::product, belay::minimum, belay::maximum or belay::average");
  static_assert(reducible<T>,
                "integers, float, double, bf16 and fp16 can be reduced; formats of 8 bits are moved, never reduced");
  return reduction_tag<Op> && reducible<T>;
}

template <class Group>
void barrier(const Group& group, where at = where::current()) {
  static_assert(communicator<Group>, "barrier needs a group of ranks, such as rank.world() or mesh.data()");
  if constexpr (communicator<Group>) group.barrier(at);
}

template <class Group, contiguous_buffer Buffer, class Op>
void all_reduce(const Group& group, Buffer&& inout, Op op, where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(!is_reduction<T, Op>() || can_all_reduce<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_all_reduce<Group, T, Op>) group.all_reduce(elements_of(inout), op, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out, class Op>
void reduce_scatter(const Group& group, const In& in, Out&& out, Op op, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(!is_reduction<T, Op>() || can_reduce_scatter<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_reduce_scatter<Group, T, Op>) group.reduce_scatter(elements_of(in), elements_of(out), op, at);
}

template <class Group, contiguous_buffer Buffer, class Op>
void reduce_scatter_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts, Op op,
                      where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(!is_reduction<T, Op>() || can_reduce_scatter_v<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_reduce_scatter_v<Group, T, Op>) group.reduce_scatter_v(elements_of(inout), counts, op, at);
}

template <class Group, contiguous_buffer Buffer, class Op>
void reduce(const Group& group, Buffer&& inout, Op op, int root, where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(!is_reduction<T, Op>() || can_reduce<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_reduce<Group, T, Op>) group.reduce(elements_of(inout), op, root, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
void all_gather(const Group& group, const In& in, Out&& out, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_all_gather<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_all_gather<Group, T>) group.all_gather(elements_of(in), elements_of(out), at);
}

template <class Group, contiguous_buffer Buffer>
void all_gather_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts,
                  where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(can_all_gather_v<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_all_gather_v<Group, T>) group.all_gather_v(elements_of(inout), counts, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
void all_to_all(const Group& group, const In& in, Out&& out, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_all_to_all<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_all_to_all<Group, T>) group.all_to_all(elements_of(in), elements_of(out), at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
void all_to_all_v(const Group& group, const In& in, std::span<const std::size_t> send_counts, Out&& out,
                  std::span<const std::size_t> receive_counts, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_all_to_all_v<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_all_to_all_v<Group, T>) {
    group.all_to_all_v(elements_of(in), send_counts, elements_of(out), receive_counts, at);
  }
}

template <class Group, contiguous_buffer Buffer>
void broadcast(const Group& group, Buffer&& inout, int root, where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(can_broadcast<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_broadcast<Group, T>) group.broadcast(elements_of(inout), root, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
void gather(const Group& group, const In& in, Out&& out, int root, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_gather<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_gather<Group, T>) group.gather(elements_of(in), elements_of(out), root, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
void scatter(const Group& group, const In& in, Out&& out, int root, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_scatter<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_scatter<Group, T>) group.scatter(elements_of(in), elements_of(out), root, at);
}

template <class Group>
void exchange(const Group& group, std::span<const p2p> transfers, where at = where::current()) {
  static_assert(can_exchange<Group>, "this communicator does not offer exchanges between pairs of ranks");
  if constexpr (can_exchange<Group>) group.exchange(transfers, at);
}

/// An exchange of one transfer: returns when rank `to` has received it.
template <class Group, contiguous_buffer Buffer>
void send(const Group& group, int to, const Buffer& data, int tag = 0, where at = where::current()) {
  constexpr bool movable = transferable<std::remove_const_t<element_of<const Buffer>>>;
  static_assert(movable, "elements are moved byte by byte: their type must be trivially copyable");
  if constexpr (movable) {
    const p2p one = p2p::send(to, elements_of(data), tag);
    exchange(group, {&one, 1}, at);
  }
}
/// The other side of it.
template <class Group, contiguous_buffer Buffer>
void receive(const Group& group, int from, Buffer&& data, int tag = 0, where at = where::current()) {
  constexpr bool movable = transferable<element_of<Buffer>>;
  static_assert(movable, "elements are moved byte by byte: their type must be trivially copyable, and not const here");
  if constexpr (movable) {
    const p2p one = p2p::receive(from, elements_of(data), tag);
    exchange(group, {&one, 1}, at);
  }
}

// The same started: what they are given stays as it is until `wait()` returns.

template <class Group>
pending start_barrier(const Group& group, where at = where::current()) {
  static_assert(can_start_barrier<Group>, "this communicator does not offer started barriers");
  if constexpr (can_start_barrier<Group>) return group.start_barrier(at);
}

template <class Group, contiguous_buffer Buffer, class Op>
pending start_all_reduce(const Group& group, Buffer&& inout, Op op, where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(!is_reduction<T, Op>() || can_start_all_reduce<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_start_all_reduce<Group, T, Op>) return group.start_all_reduce(elements_of(inout), op, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out, class Op>
pending start_reduce_scatter(const Group& group, const In& in, Out&& out, Op op, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(!is_reduction<T, Op>() || can_start_reduce_scatter<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_start_reduce_scatter<Group, T, Op>) {
    return group.start_reduce_scatter(elements_of(in), elements_of(out), op, at);
  }
}

template <class Group, contiguous_buffer Buffer, class Op>
pending start_reduce_scatter_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts, Op op,
                               where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(!is_reduction<T, Op>() || can_start_reduce_scatter_v<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_start_reduce_scatter_v<Group, T, Op>) {
    return group.start_reduce_scatter_v(elements_of(inout), counts, op, at);
  }
}

template <class Group, contiguous_buffer Buffer, class Op>
pending start_reduce(const Group& group, Buffer&& inout, Op op, int root, where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(!is_reduction<T, Op>() || can_start_reduce<Group, T, Op>,
                "this communicator does not offer this operation for such elements");
  if constexpr (can_start_reduce<Group, T, Op>) return group.start_reduce(elements_of(inout), op, root, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_all_gather(const Group& group, const In& in, Out&& out, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_start_all_gather<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_all_gather<Group, T>) return group.start_all_gather(elements_of(in), elements_of(out), at);
}

template <class Group, contiguous_buffer Buffer>
pending start_all_gather_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts,
                           where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(can_start_all_gather_v<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_all_gather_v<Group, T>) return group.start_all_gather_v(elements_of(inout), counts, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_all_to_all(const Group& group, const In& in, Out&& out, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_start_all_to_all<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_all_to_all<Group, T>) return group.start_all_to_all(elements_of(in), elements_of(out), at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_all_to_all_v(const Group& group, const In& in, std::span<const std::size_t> send_counts, Out&& out,
                           std::span<const std::size_t> receive_counts, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_start_all_to_all_v<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_all_to_all_v<Group, T>) {
    return group.start_all_to_all_v(elements_of(in), send_counts, elements_of(out), receive_counts, at);
  }
}

template <class Group, contiguous_buffer Buffer>
pending start_broadcast(const Group& group, Buffer&& inout, int root, where at = where::current()) {
  using T = element_of<Buffer>;
  static_assert(can_start_broadcast<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_broadcast<Group, T>) return group.start_broadcast(elements_of(inout), root, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_gather(const Group& group, const In& in, Out&& out, int root, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_start_gather<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_gather<Group, T>) return group.start_gather(elements_of(in), elements_of(out), root, at);
}

template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_scatter(const Group& group, const In& in, Out&& out, int root, where at = where::current()) {
  using T = element_of<Out>;
  static_assert(can_start_scatter<Group, T>, "this communicator does not offer this operation for such elements");
  if constexpr (can_start_scatter<Group, T>) return group.start_scatter(elements_of(in), elements_of(out), root, at);
}

template <class Group>
pending start_exchange(const Group& group, std::span<const p2p> transfers, where at = where::current()) {
  static_assert(can_start_exchange<Group>, "this communicator does not offer started exchanges between pairs of ranks");
  if constexpr (can_start_exchange<Group>) return group.start_exchange(transfers, at);
}

}  // namespace belay::inline BELAY_ABI
