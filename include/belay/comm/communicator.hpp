// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The concepts of a communicator: a minimum, what some can do beyond it, and what they promise. A communicator is a
// *group*: the handle of one rank onto an ordered set of ranks, copied freely. All ranks of a group call the same
// operations in the same order, one at a time; started operations have an order of their own (see `pending`).
//
//   template <belay::communicator Group>
//   requires belay::can_all_reduce<Group, float>
//   void average(const Group& group, std::span<float> grad) {
//     group.all_reduce(grad, belay::average);
//   }
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "belay/comm/fingerprint.hpp"
#include "belay/comm/p2p.hpp"  // IWYU pragma: export
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The pieces, one requirement each, so that a compiler's note stops at the one that is missing.
template <class C>
concept has_rank = requires(const C& c) {
  { c.rank() } -> std::same_as<int>;
};
template <class C>
concept has_size = requires(const C& c) {
  { c.size() } -> std::same_as<int>;
};
template <class C>
concept can_barrier = requires(const C& c, where at) {
  c.barrier(at);
};

/// The minimum: one of several ranks that can wait for each other.
template <class C>
concept communicator = std::copyable<C> && has_rank<C> && has_size<C> && can_barrier<C>;

/// A rehearsal's communicator: it moves nothing, and memory used with it may be addresses without pages, which no code
/// may touch.
template <class C>
concept moves_nothing = communicator<C> && requires {
  requires C::moves_nothing;
};

/// A group whose abilities and promises are asked when the program runs: `traits()`. What a template would refuse of
/// another group when it is compiled, it refuses of this one when it is called (see `expect_promise`).
template <class C>
concept tells_traits = communicator<C> && requires(const C& c) {
  { c.traits().rehearsed } -> std::convertible_to<bool>;
};

/// Whether a group moves nothing, which some know when they are compiled, and `group` when it runs.
template <class C>
[[nodiscard]] constexpr bool is_rehearsed(const C& of) {
  if constexpr (moves_nothing<C>)
    return true;
  else if constexpr (tells_traits<C>)
    return of.traits().rehearsed;
  else
    return false;
}

// What a communicator promises beyond what its operations are called. It says so with a constant of that name, because
// no compiler can find out; what does not say so does not promise it.

/// Sums, products and averages are added ((x0 + x1) + x2) + ... in rank order: the same bits on all ranks, on every
/// such backend and from all_reduce, reduce_scatter and reduce alike. NCCL, for one, does not promise it.
template <class C>
concept sums_in_rank_order = tells_traits<C> ||(communicator<C>&& requires { requires C::sums_in_rank_order; });

/// All ranks get the same bits of one all_reduce, in whatever order it adds: replicated parameters stay alike. What
/// other operations give, another mesh or another run may differ. NCCL promises that much.
template <class C>
concept sums_alike = sums_in_rank_order<C> ||(communicator<C>&& requires { requires C::sums_alike; });

/// Ranks may hold different numbers of elements: the operations whose names end in _v are offered.
template <class C>
concept has_varying_counts = tells_traits<C> ||(communicator<C>&& requires { requires C::has_varying_counts; });

/// Elements can be reduced over all ranks, and gathered from all.
template <class C, class T, class Op = sum_t>
concept can_all_reduce = requires(const C& c, std::span<T> inout, Op op, where at) {
  c.all_reduce(inout, op, at);
};
template <class C, class T>
concept can_all_gather = requires(const C& c, std::span<const T> in, std::span<T> out, where at) {
  c.all_gather(in, out, at);
};

/// Sends and receives between pairs of its ranks can be called.
template <class C>
concept can_exchange = requires(const C& c, std::span<const p2p> transfers, where at) {
  c.exchange(transfers, at);
};

/// A barrier can be started, as well as called.
template <class C>
concept can_start_barrier = requires(const C& c, const start_order& at) {
  { c.start_barrier(at) } -> std::same_as<pending>;
};

/// An exchange can be started, as well as called.
template <class C>
concept can_start_exchange = requires(const C& c, std::span<const p2p> transfers, const start_order& at) {
  { c.start_exchange(transfers, at) } -> std::same_as<pending>;
};

/// Host work and blocking operations can be started as one, in the order of all that is started.
template <class C, class Work>
concept can_start_composite = requires(const C& c, const Work& work, const start_order& at) {
  { c.start_composite(operation::none, work, at) } -> std::same_as<pending>;
};

/// Host work of one rank alone can be started, in the order of all that the rank starts.
template <class C, class Work>
concept can_start_local = requires(const C& c, const Work& work, const start_order& at) {
  { c.start_local(operation::none, work, at) } -> std::same_as<pending>;
};

/// Peers' memory can be loaded and stored: the group makes memory that every rank sees (see symmetric.hpp).
template <class C>
concept directly_addressable = communicator<C> && requires(const C& c, std::size_t bytes, where at) {
  { c.make_symmetric(bytes, at).at(0) } -> std::same_as<std::byte*>;
};

/// Peers' memory is reached by messages: the group agrees on its size and exchanges ranges of it (see symmetric.hpp).
template <class C>
concept mirrored_by_messages = communicator<C> && !directly_addressable<C> && can_exchange<C> &&
                               requires(const C& c, std::size_t bytes, where at) {
  c.agree_symmetric(bytes, at);
};

/// One boolean, so that a diagnostic does not list both alternatives.
template <class C>
inline constexpr bool reaches_peers_memory = directly_addressable<C> || mirrored_by_messages<C>;

/// Whether peers' memory is loaded and stored, and whether it is mirrored by messages, as some groups know when they
/// are compiled, and `group` when it runs.
template <class C>
[[nodiscard]] constexpr bool addresses_peers([[maybe_unused]] const C& of) noexcept {
  if constexpr (tells_traits<C>)
    return of.traits().addresses_peers;
  else
    return directly_addressable<C>;
}
template <class C>
[[nodiscard]] constexpr bool mirrors_peers([[maybe_unused]] const C& of) noexcept {
  if constexpr (tells_traits<C>)
    return of.traits().mirrors_peers;
  else
    return mirrored_by_messages<C>;
}

/// Can have a symmetric heap, by addresses or by messages.
template <class C>
concept has_symmetric_memory = reaches_peers_memory<C>;

/// Peers' memory is not addressed, and no mirror of it is kept: what is sent is received into memory of this rank
/// alone, which `local_memory()`, a group of one, makes (`ranks_of_heap`).
template <class C>
concept has_local_memory = communicator<C> && !has_symmetric_memory<C> && requires(const C& c) {
  requires directly_addressable<std::remove_cvref_t<decltype(c.local_memory())>>;
};

/// Buffers are memory that the host does not address: `each(count, f)` runs a kernel there, `fetch(to, from, bytes)`
/// and `place(to, from, bytes)` copy to and from memory of the host; all return when that is done. `scratch()` is
/// memory there for what such a kernel tells the host. What ranks agree on travels on `control()`, the communicator of
/// the same ranks for memory of the host.
template <class C>
concept works_on_device = communicator<C> &&
    requires(const C& c, void* to, const void* from, std::size_t bytes, where at) {
  { c.control().rank() } -> std::same_as<int>;
  { c.scratch() } -> std::same_as<std::span<std::byte>>;
  c.fetch(to, from, bytes, at);
  c.place(to, from, bytes, at);
};

/// Whether ranks send each other what is in memory that no peer addresses, nor mirrors.
template <class C>
[[nodiscard]] constexpr bool sends_to_peers([[maybe_unused]] const C& of) noexcept {
  if constexpr (tells_traits<C>)
    return of.traits().on_device && !addresses_peers(of);
  else
    return has_local_memory<C>;
}

/// The communicator of a group's ranks for memory of the host: votes, norms, counts, hashes.
template <communicator C>
[[nodiscard]] const auto& control_of(const C& group) noexcept {
  if constexpr (tells_traits<C> || works_on_device<C>)
    return group.control();
  else
    return group;
}

/// The number of a rank, or of this rank in a group, where the sizes that follow are computed for every rank alike. A
/// rehearsal does not take it for a question of the body: one rank is rehearsed for all that answer alike.
template <class Ranked>
[[nodiscard]] constexpr int layout_rank(const Ranked& ranked) noexcept {
  if constexpr (requires { ranked.unasked_rank(); })
    return ranked.unasked_rank();
  else if constexpr (requires { ranked.rank(); })
    return ranked.rank();
  else
    return ranked.number();
}

}  // namespace belay::inline BELAY_ABI
