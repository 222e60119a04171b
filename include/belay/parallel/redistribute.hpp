// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// From one placement to another. The two types choose the collectives, and a pair without one is refused with a
// sentence. The source is consumed, because the result may lie in its memory. A tensor over one group has placements of
// one axis, whose ranks are that group; one over a mesh has a list, and each axis that changes takes its collective.
//
//   partial   -> replicate   all_reduce            shard     -> replicate   all_gather_v
//   partial   -> shard<0>    reduce_scatter_v      replicate -> shard<0>    the local slice
//   shard<0>  -> shard<1>    all_to_all_v, over a mesh
//
//   auto mine = belay::redistribute<belay::shard<0>>(std::move(grad));
//   auto whole = belay::redistribute<belay::replicate>(std::move(mine), storage);
//   auto rows = belay::redistribute<belay::shard<0, belay::axis::expert>>(std::move(box), storage);  // of a mesh
//
// Inside of a layer the sum of a row-parallel matrix needs no placement.
//
//   frame.product(y, hidden, belay::transposed(frame.read(second)));     // this rank's part of the columns
//   belay::frame_all_reduce(frame, mesh.tensor(), y.flat(), belay::sum);  // the sum over the tensor axis
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "belay/comm/axis.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream.hpp"
#include "belay/parallel/local_box.hpp"
#include "belay/parallel/placement.hpp"
#include "belay/parallel/redistribute/over_mesh.hpp"  // IWYU pragma: export
#include "belay/parallel/sharded.hpp"

namespace belay::inline BELAY_ABI {

/// Pairs of placements that a collective connects.
template <class From, class To>
concept redistributable = on_one_axis<From, To> &&
    (std::same_as<From, To> || (is_partial<From> && !is_partial<To>) || (is_shard<From> && is_replicate<To>) ||
     (is_replicate<From> && is_shard<To>));

/// Pairs whose result fits into the memory of the source.
template <class From, class To>
concept redistributable_in_place = redistributable<From, To> && !(is_shard<From> && is_replicate<To>);

/// Placements whose local part is one contiguous range.
template <class Placement>
concept contiguous_placement = !is_shard<Placement> || Placement::dimension == 0;

/// Reductions whose result does not depend on the order of their operands.
template <class T, auto Op>
inline constexpr bool same_in_any_order =
    std::is_integral_v<T> || Op.code == reduction::minimum || Op.code == reduction::maximum;

/// A partial sum of floating point becomes the same bits by both its ways, all_reduce and reduce_scatter_v, where the
/// group adds in rank order.
template <class T, class From>
inline constexpr bool needs_rank_order = false;
template <class T, auto Op, axis Axis>
inline constexpr bool needs_rank_order<T, partial<Op, Axis>> = !same_in_any_order<T, Op>;

/// The rules for redistributions over one group, each a sentence of the compiler.
template <class T, class From, class To, class Group>
constexpr void check_redistribution() {
  static_assert(on_one_axis<From, To>,
                "a redistribution stays on one axis of the mesh, the one of its group: name the same axis in both "
                "placements, or redistribute to belay::replicate first");
  static_assert(!(is_shard<From> && is_shard<To> && on_one_axis<From, To> && !std::same_as<From, To>),
                "a tensor over one group has counts and no shape, so a shard of one dimension does not become one of "
                "another: make it over a mesh, belay::sharded<T, Placement, mesh>, or redistribute to belay::replicate "
                "first");
  static_assert(!(is_partial<To> && on_one_axis<From, To> && !std::same_as<From, To>),
                "nothing can be redistributed to partial: a partial is made by computing one operand on every rank");
  static_assert(std::same_as<From, To> || (contiguous_placement<From> && contiguous_placement<To>),
                "redistribute moves contiguous parts: only dimension 0 can be sharded, make it the first one");
  static_assert(std::same_as<From, To> || !needs_rank_order<T, From> || sums_in_rank_order<Group>,
                "a partial sum becomes the same bits whether it is replicated or sharded: take a communicator with "
                "sums_in_rank_order, as belay::host and belay::mpi have");
  static_assert(std::same_as<From, To> || !(is_shard<From> || is_shard<To>) || has_varying_counts<Group>,
                "the parts of a sharded tensor may differ in size: take a communicator with has_varying_counts, as "
                "belay::host and belay::mpi have");
}

/// Asks a group of what `check_redistribution` asks its type. Throws usage_error.
template <class T, class From, class To, class Group>
void expect_redistribution(const Group& group, where at) {
  if constexpr (!std::same_as<From, To>) {
    if constexpr (needs_rank_order<T, From>)
      expect_promise(group, &group_traits::sums_in_rank_order, rank_order_promised, at);
    if constexpr (is_shard<From> || is_shard<To>)
      expect_promise(group, &group_traits::has_varying_counts, varying_counts_promised, at);
  }
}

/// The tensor of `from` with placement `To`, in the memory of `from`: the result's `local()` lies inside of
/// `from.local()`. Collective over the group, whose errors it throws.
template <class To, class T, class From, class Group>
requires(placement<To> && !tensor_mesh<Group>)
    [[nodiscard]] sharded<T, To, Group> redistribute(sharded<T, From, Group>&& from, where at = where::current()) {
  check_redistribution<T, From, To, Group>();
  static_assert(redistributable_in_place<From, To> || !redistributable<From, To>,
                "from shard to replicate the whole needs memory of its own: redistribute<To>(from, storage)");
  if constexpr (redistributable_in_place<From, To>) {
    Group group = from.group();
    expect_redistribution<T, From, To>(group, at);
    const std::span<T> memory = from.local();
    const shard_counts counts = from.counts();
    const local_part own = from.own();
    if constexpr (std::same_as<From, To>) {
      return std::move(from);
    } else if constexpr (is_partial<From> && is_replicate<To>) {
      if (group.size() > 1) group.all_reduce(memory, From::operation, at);
      return {group, memory, counts, at};
    } else {
      if constexpr (is_partial<From>)
        if (group.size() > 1) group.reduce_scatter_v(memory, counts.counts(), From::operation, at);
      return {group, memory.subspan(own.first, own.count), counts, at};
    }
  } else {
    return {from.group(), {}, from.counts(), at};
  }
}

/// The tensor of `from` with placement `To`, in `storage`: from shard to replicate, where the whole needs memory of its
/// own. The local part is copied to its position in `storage` unless it lies there already. Throws usage_error where
/// `storage` has not as many elements as the whole. Collective over the group, whose errors it throws.
template <class To, class T, class From, class Group>
requires(placement<To> && !tensor_mesh<Group>)
    [[nodiscard]] sharded<T, To, Group> redistribute(sharded<T, From, Group>&& from, std::span<T> storage,
                                                     where at = where::current()) {
  check_redistribution<T, From, To, Group>();
  static_assert((is_shard<From> && is_replicate<To>) || !redistributable<From, To>,
                "this redistribution happens in the memory of its source: leave the storage out");
  if (storage.size() != from.global_size())
    throw usage_error("the whole tensor has " + std::to_string(from.global_size()) + " elements, the storage has " +
                          std::to_string(storage.size()),
                      at);
  if constexpr (is_shard<From> && is_replicate<To>) {
    Group group = from.group();
    expect_redistribution<T, From, To>(group, at);
    const std::span<const T> part = from.local();
    T* place = storage.data() + from.own().first;
    if (!part.empty() && place != part.data() && !is_rehearsed(group))
      std::memmove(place, part.data(), part.size_bytes());
    if (group.size() > 1) group.all_gather_v(storage, from.counts().counts(), at);
    return {group, storage, from.counts(), at};
  } else {
    return {from.group(), storage, from.counts(), at};
  }
}

/// A redistribution consumes its source: a named one must be moved.
template <class To, class T, class From, class Group, class... Rest>
requires(!tensor_mesh<Group>) void redistribute(sharded<T, From, Group>&, Rest&&...) {
  static_assert(!placement<To>, "redistribute uses its source up: write redistribute<To>(std::move(from))");
}

/// Reduces `values`, memory of the frame, in place, after what the frame has queued and before what it queues. Not done
/// in a rehearsal. Collective over the group, for whose ranks the layer is called in the same order; what the operation
/// throws comes at the host's next wait where the stream runs by itself.
template <class Frame, communicator Group, class T, class Op>
void frame_all_reduce(Frame& frame, const Group& group, std::span<T> values, Op op, where at = where::current()) {
  if (group.size() == 1) return;
  auto& stream = frame.engine().compute();
  if constexpr (requires(const start_order& how) { group.start_all_reduce(values, op, how); }) {
    if (runs_later(stream)) {
      pending under_way = group.start_all_reduce(values, op, start_order(after(stream.record(), at)));
      return std::move(under_way).then(stream, at);
    }
  }
  frame.run_on_host([&] { group.all_reduce(values, op, at); });
}

}  // namespace belay::inline BELAY_ABI
