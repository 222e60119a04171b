// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The collectives as free functions over any communicator. They take anything contiguous; where a communicator or an
// element type cannot do what is asked, they say so in a sentence. The contracts are those of a group's members; these
// functions add nothing to them.
//
//   std::vector<float> grad(1000);
//   belay::all_reduce(group, grad, belay::average);                           // every rank has the average
//   belay::pending sum = belay::start_all_reduce(group, grad, belay::sum);    // `grad` is in use
//   std::move(sum).wait();                                                    // until here
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/comm/communicator.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
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

/// Whether a communicator offers an operation; where it does not, or is none, a sentence ends the compilation.
template <class Group, bool Offered>
constexpr bool is_offered() {
  static_assert(communicator<Group>, "a collective needs a group of ranks, such as rank.world() or mesh.data()");
  static_assert(Offered || !communicator<Group>, "this communicator does not offer this operation for such elements");
  return Offered;
}
/// Whether a communicator offers a reduction; where it does not, a sentence ends the compilation: first about tags that
/// are no reduction, and elements that no communicator reduces.
template <class Group, class T, class Op, bool Offered>
constexpr bool is_offered_reduction() {
  static_assert(reduction_tag<Op>,
                "a reduction is belay::sum, belay::product, belay::minimum, belay::maximum or belay::average");
  static_assert(reducible<T>,
                "integers, float, double, bf16 and fp16 can be reduced; formats of 8 bits are moved, never reduced");
  if constexpr (reduction_tag<Op> && reducible<T>) return is_offered<Group, Offered>();
  return false;
}

/// Returns when all ranks of the group have called it, or started what is waited for.
template <class Group>
void barrier(const Group& group, where at = where::current()) {
  static_assert(communicator<Group>, "barrier needs a group of ranks, such as rank.world() or mesh.data()");
  if constexpr (communicator<Group>) group.barrier(at);
}
template <class Group>
pending start_barrier(const Group& group, const start_order& at = where::current()) {
  static_assert(can_start_barrier<Group>, "this communicator does not offer started barriers");
  if constexpr (can_start_barrier<Group>) return group.start_barrier(at);
}

// Each collective, called and started. What a started one is given stays as it is until `wait()` returns.

/// `inout` of all ranks, element by element, on all of them; every rank gets the same bits.
template <class Group, contiguous_buffer Buffer, class Op>
void all_reduce(const Group& group, Buffer&& inout, Op op, where at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Buffer>, Op, can_all_reduce<Group, element_of<Buffer>, Op>>()) {
    group.all_reduce(elements_of(inout), op, at);
  }
}
template <class Group, contiguous_buffer Buffer, class Op>
pending start_all_reduce(const Group& group, Buffer&& inout, Op op, const start_order& at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Buffer>, Op,
                                     requires { group.start_all_reduce(elements_of(inout), op, at); }>()) {
    return group.start_all_reduce(elements_of(inout), op, at);
  }
}

/// Element by element over all ranks; rank r gets the r-th part of `in`, of the length of `out`.
template <class Group, contiguous_buffer In, contiguous_buffer Out, class Op>
void reduce_scatter(const Group& group, const In& in, Out&& out, Op op, where at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Out>, Op,
                                     requires { group.reduce_scatter(elements_of(in), elements_of(out), op, at); }>()) {
    group.reduce_scatter(elements_of(in), elements_of(out), op, at);
  }
}
template <class Group, contiguous_buffer In, contiguous_buffer Out, class Op>
pending start_reduce_scatter(const Group& group, const In& in, Out&& out, Op op,
                             const start_order& at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Out>, Op, requires {
                  group.start_reduce_scatter(elements_of(in), elements_of(out), op, at);
                }>()) {
    return group.start_reduce_scatter(elements_of(in), elements_of(out), op, at);
  }
}

/// Element by element over all ranks, in place: rank r gets `counts[r]` elements, which are left where they stand in
/// `inout`.
template <class Group, contiguous_buffer Buffer, class Op>
void reduce_scatter_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts, Op op,
                      where at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Buffer>, Op,
                                     requires { group.reduce_scatter_v(elements_of(inout), counts, op, at); }>()) {
    group.reduce_scatter_v(elements_of(inout), counts, op, at);
  }
}
template <class Group, contiguous_buffer Buffer, class Op>
pending start_reduce_scatter_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts, Op op,
                               const start_order& at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Buffer>, Op, requires {
                  group.start_reduce_scatter_v(elements_of(inout), counts, op, at);
                }>()) {
    return group.start_reduce_scatter_v(elements_of(inout), counts, op, at);
  }
}

/// `inout` of all ranks, element by element, on rank `root`; the others keep what they held.
template <class Group, contiguous_buffer Buffer, class Op>
void reduce(const Group& group, Buffer&& inout, Op op, int root, where at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Buffer>, Op,
                                     requires { group.reduce(elements_of(inout), op, root, at); }>()) {
    group.reduce(elements_of(inout), op, root, at);
  }
}
template <class Group, contiguous_buffer Buffer, class Op>
pending start_reduce(const Group& group, Buffer&& inout, Op op, int root, const start_order& at = where::current()) {
  if constexpr (is_offered_reduction<Group, element_of<Buffer>, Op,
                                     requires { group.start_reduce(elements_of(inout), op, root, at); }>()) {
    return group.start_reduce(elements_of(inout), op, root, at);
  }
}

/// The `in` of all ranks one after another, on all of them; `out` is as long as all together.
template <class Group, contiguous_buffer In, contiguous_buffer Out>
void all_gather(const Group& group, const In& in, Out&& out, where at = where::current()) {
  if constexpr (is_offered<Group, can_all_gather<Group, element_of<Out>>>()) {
    group.all_gather(elements_of(in), elements_of(out), at);
  }
}
template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_all_gather(const Group& group, const In& in, Out&& out, const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires { group.start_all_gather(elements_of(in), elements_of(out), at); }>()) {
    return group.start_all_gather(elements_of(in), elements_of(out), at);
  }
}

/// The elements of all ranks one after another, in place: rank r has `counts[r]` of them, and gives those that stand at
/// their place in `inout`.
template <class Group, contiguous_buffer Buffer>
void all_gather_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts,
                  where at = where::current()) {
  if constexpr (is_offered<Group, requires { group.all_gather_v(elements_of(inout), counts, at); }>()) {
    group.all_gather_v(elements_of(inout), counts, at);
  }
}
template <class Group, contiguous_buffer Buffer>
pending start_all_gather_v(const Group& group, Buffer&& inout, std::span<const std::size_t> counts,
                           const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires { group.start_all_gather_v(elements_of(inout), counts, at); }>()) {
    return group.start_all_gather_v(elements_of(inout), counts, at);
  }
}

/// Part q of rank r's `in` becomes part r of rank q's `out`: parts of one length.
template <class Group, contiguous_buffer In, contiguous_buffer Out>
void all_to_all(const Group& group, const In& in, Out&& out, where at = where::current()) {
  if constexpr (is_offered<Group, requires { group.all_to_all(elements_of(in), elements_of(out), at); }>()) {
    group.all_to_all(elements_of(in), elements_of(out), at);
  }
}
template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_all_to_all(const Group& group, const In& in, Out&& out, const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires { group.start_all_to_all(elements_of(in), elements_of(out), at); }>()) {
    return group.start_all_to_all(elements_of(in), elements_of(out), at);
  }
}

/// Parts of any length to and from every rank: `send_counts[q]` elements of `in` to rank q, and `receive_counts[r]`
/// from rank r into `out`.
template <class Group, contiguous_buffer In, contiguous_buffer Out>
void all_to_all_v(const Group& group, const In& in, std::span<const std::size_t> send_counts, Out&& out,
                  std::span<const std::size_t> receive_counts, where at = where::current()) {
  if constexpr (is_offered<Group, requires {
                  group.all_to_all_v(elements_of(in), send_counts, elements_of(out), receive_counts, at);
                }>()) {
    group.all_to_all_v(elements_of(in), send_counts, elements_of(out), receive_counts, at);
  }
}
template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_all_to_all_v(const Group& group, const In& in, std::span<const std::size_t> send_counts, Out&& out,
                           std::span<const std::size_t> receive_counts, const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires {
                  group.start_all_to_all_v(elements_of(in), send_counts, elements_of(out), receive_counts, at);
                }>()) {
    return group.start_all_to_all_v(elements_of(in), send_counts, elements_of(out), receive_counts, at);
  }
}

/// The `inout` of rank `root`, on all ranks.
template <class Group, contiguous_buffer Buffer>
void broadcast(const Group& group, Buffer&& inout, int root, where at = where::current()) {
  if constexpr (is_offered<Group, requires { group.broadcast(elements_of(inout), root, at); }>()) {
    group.broadcast(elements_of(inout), root, at);
  }
}
template <class Group, contiguous_buffer Buffer>
pending start_broadcast(const Group& group, Buffer&& inout, int root, const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires { group.start_broadcast(elements_of(inout), root, at); }>()) {
    return group.start_broadcast(elements_of(inout), root, at);
  }
}

/// The `in` of all ranks one after another, on rank `root`; on others `out` may be empty.
template <class Group, contiguous_buffer In, contiguous_buffer Out>
void gather(const Group& group, const In& in, Out&& out, int root, where at = where::current()) {
  if constexpr (is_offered<Group, requires { group.gather(elements_of(in), elements_of(out), root, at); }>()) {
    group.gather(elements_of(in), elements_of(out), root, at);
  }
}
template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_gather(const Group& group, const In& in, Out&& out, int root, const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires { group.start_gather(elements_of(in), elements_of(out), root, at); }>()) {
    return group.start_gather(elements_of(in), elements_of(out), root, at);
  }
}

/// Part r of rank `root`'s `in`, on rank r; on others `in` may be empty.
template <class Group, contiguous_buffer In, contiguous_buffer Out>
void scatter(const Group& group, const In& in, Out&& out, int root, where at = where::current()) {
  if constexpr (is_offered<Group, requires { group.scatter(elements_of(in), elements_of(out), root, at); }>()) {
    group.scatter(elements_of(in), elements_of(out), root, at);
  }
}
template <class Group, contiguous_buffer In, contiguous_buffer Out>
pending start_scatter(const Group& group, const In& in, Out&& out, int root, const start_order& at = where::current()) {
  if constexpr (is_offered<Group, requires { group.start_scatter(elements_of(in), elements_of(out), root, at); }>()) {
    return group.start_scatter(elements_of(in), elements_of(out), root, at);
  }
}

/// Runs all transfers, in any order of their ends: each needs its counterpart in an exchange of the other rank, with
/// the same tag and bytes.
template <class Group>
void exchange(const Group& group, std::span<const p2p> transfers, where at = where::current()) {
  static_assert(can_exchange<Group>, "this communicator does not offer exchanges between pairs of ranks");
  if constexpr (can_exchange<Group>) group.exchange(transfers, at);
}

/// An exchange of one transfer: returns when rank `to` has received it.
template <class Group, contiguous_buffer Buffer>
void send_to(const Group& group, int to, const Buffer& data, int tag = 0, where at = where::current()) {
  constexpr bool movable = transferable<std::remove_const_t<element_of<const Buffer>>>;
  static_assert(movable, "elements are moved byte by byte: their type must be trivially copyable");
  if constexpr (movable) {
    const p2p one = p2p::send(to, elements_of(data), tag);
    exchange(group, {&one, 1}, at);
  }
}
/// An exchange of one transfer: returns when `data` holds what rank `from` has sent.
template <class Group, contiguous_buffer Buffer>
void receive_from(const Group& group, int from, Buffer&& data, int tag = 0, where at = where::current()) {
  constexpr bool movable = transferable<element_of<Buffer>>;
  static_assert(movable, "elements are moved byte by byte: their type must be trivially copyable, and not const here");
  if constexpr (movable) {
    const p2p one = p2p::receive(from, elements_of(data), tag);
    exchange(group, {&one, 1}, at);
  }
}

/// Starts all transfers of an exchange: the buffers are in use until `wait`.
template <class Group>
pending start_exchange(const Group& group, std::span<const p2p> transfers, const start_order& at = where::current()) {
  static_assert(can_start_exchange<Group>, "this communicator does not offer started exchanges between pairs of ranks");
  if constexpr (can_start_exchange<Group>) return group.start_exchange(transfers, at);
}

}  // namespace belay::inline BELAY_ABI
