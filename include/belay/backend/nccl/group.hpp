// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of ranks over NCCL: the handle that user code calls. Its buffers are memory of the device. What is started is
// queued on the rank's communication stream; a stream of the device waits for it on the device.
//
//   const auto& group = mesh.replicas();
//   belay::pending sum = group.start_all_reduce(gradients, belay::sum, belay::after(kit.stream().record()));
//   std::move(sum).then(kit.stream());  // kernels from here on find the sum; the host waits for nothing
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/nccl/channel.hpp"
#include "belay/backend/nccl/lone_operations.hpp"
#include "belay/backend/nccl/nccl_api.hpp"
#include "belay/backend/nccl/operations.hpp"
#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/checked_timeout.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::nccl {

/// One rank's part in a group that is not of this rank alone.
template <nccl_api N>
struct group_state {
  typename N::communicator_type on{};  ///< a child of the rank's parent
  std::vector<int> members;            ///< ranks of the world, in group order
  int rank = 0;                        ///< this one's, in the group
  std::uint32_t number = 0;            ///< of the rank's groups; 0 is the world
  std::uint64_t operations = 0;        ///< started so far
};

/// What a group of `Sums` reduces.
template <class T, sums Sums>
concept reduced_with = reducible<T> &&(Sums == sums::fixed_order || reduced_by_nccl<T>);

/// Collectives with equal shares, and grouped transfers between pairs. All ranks of the group call the same ones in the
/// same order with the same sizes: NCCL checks none of that, and one that differs ends at its time-out. Copies are the
/// same handle. A blocking call is one that is started and waited for; what fills its buffers must be over before, or
/// be in the order of the rank's communications.
template <cuda::device_api Api, nccl_api N, sums Sums>
class group {
 public:
  /// Where they are of `sums::fixed_order`.
  static constexpr bool sums_in_rank_order = Sums == sums::fixed_order;
  using channel_type = channel<Api, N>;
  using duration = std::chrono::steady_clock::duration;

  /// `state` is null for the group of this rank alone.
  group(std::shared_ptr<channel_type> in, std::shared_ptr<group_state<N>> state, duration limit) noexcept
      : channel_(std::move(in)), state_(std::move(state)), limit_(limit) {}

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return alone() ? 0 : state_->rank; }
  /// How many ranks it has.
  [[nodiscard]] int size() const noexcept { return alone() ? 1 : static_cast<int>(state_->members.size()); }
  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const noexcept {
    return alone() ? std::span<const int>(&channel_->number(), 1) : std::span<const int>(state_->members);
  }
  /// The same group, whose operations end after so long instead of the world's timeout. Throws usage_error.
  [[nodiscard]] group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    group out = *this;
    out.limit_ = checked_timeout(timeout, at);
    return out;
  }

  /// Returns when all ranks have come, and what they had started is over on their devices.
  void barrier(where at = where::current()) const { start_barrier(at).wait(at); }
  /// Is over when all ranks have come to it.
  pending start_barrier(const start_order& how = where::current()) const {
    return start<operation::barrier>({}, 0, how, [](const auto& queue) { queue.barrier(); });
  }

  /// Every rank's `inout` becomes the reduction over all.
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums>
  void all_reduce(std::span<T> inout, Op op, where at = where::current()) const {
    all_reduce(std::span<const T>(inout), inout, op, at);
  }
  /// The same out of place.
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                  where at = where::current()) const {
    check_length(out.size(), in.size(), "all_reduce: the output", at);
    check_overlap(in, out, out.data(), "all_reduce", at);
    queue_all_reduce<T>(in, out, op, blocking(operation::all_reduce, uses(in, out), at)).wait(at);
  }
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums> pending start_all_reduce(std::span<T> inout, Op op,
                                                          const start_order& how = where::current())
  const {
    check_bytes(inout, "all_reduce", how.at);
    return queue_all_reduce<T>(inout, inout, op, how);
  }

  /// `out` becomes this rank's part of the reduction of `in` (size x out elements). In place when `out` is that part.
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums>
  void reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                      where at = where::current()) const {
    const start_order how = blocking(operation::reduce_scatter, uses(in, out), at);
    start_reduce_scatter(in, out, op, how).wait(at);
  }
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums> pending start_reduce_scatter(std::span<const std::type_identity_t<T>> in,
                                                              std::span<T> out, Op op,
                                                              const start_order& how = where::current())
  const {
    check_length(in.size(), all_parts(out.size(), size()), "reduce_scatter: the input", how.at);
    check_overlap(std::span<const T>(out), in, part_of(in.data(), out.size()), "reduce_scatter", how.at);
    return start<operation::reduce_scatter>(uses(in, out), in.size_bytes(), how, [=](const auto& queue) {
      if constexpr (Sums == sums::fixed_order)
        queue.template ordered_reduce_scatter<T>(in, out, op);
      else
        queue.template reduce_scatter<T>(in, out, op);
    });
  }

  /// The root's `inout` becomes the reduction over all; the others keep what they held.
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums>
  void reduce(std::span<T> inout, Op op, int root, where at = where::current()) const {
    const start_order how = blocking(operation::reduce, uses(inout, inout), at);
    start_reduce(inout, op, root, how).wait(at);
  }
  template <class T, reduction_tag Op>
  requires reduced_with<T, Sums> pending start_reduce(std::span<T> inout, Op op, int root,
                                                      const start_order& how = where::current())
  const {
    check_root(root, size(), "reduce", how.at);
    check_bytes(inout, "reduce", how.at);
    return start<operation::reduce>(uses(inout, inout), inout.size_bytes(), how, [=](const auto& queue) {
      if constexpr (Sums == sums::fixed_order)
        queue.template ordered_reduce<T>(inout, inout, op, root);
      else
        queue.template reduce<T>(inout, inout, op, root);
    });
  }

  /// `out` (size x in elements) becomes all ranks' `in` in rank order. In place when `in` is this rank's part of it.
  template <transferable T>
  void all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    const start_order how = blocking(operation::all_gather, uses(in, out), at);
    start_all_gather(in, out, how).wait(at);
  }
  template <transferable T>
  pending start_all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           const start_order& how = where::current()) const {
    check_length(out.size(), all_parts(in.size(), size()), "all_gather: the output", how.at);
    check_overlap(in, out, part_of(out.data(), in.size()), "all_gather", how.at);
    return start<operation::all_gather>(uses(in, out), out.size_bytes(), how, [=](const auto& queue) {
      queue.all_gather(std::as_bytes(in), std::as_writable_bytes(out));
    });
  }

  /// Part q of `in` goes to rank q; part q of `out` comes from rank q. Parts are equal. In place when `out` is `in`, on
  /// all ranks or on none.
  template <transferable T>
  void all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    const start_order how = blocking(operation::all_to_all, uses(in, out), at);
    start_all_to_all(in, out, how).wait(at);
  }
  template <transferable T>
  pending start_all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           const start_order& how = where::current()) const {
    check_all_to_all(std::span<const T>(in), out, size(), how.at);
    return start<operation::all_to_all>(uses(in, out), out.size_bytes(), how, [=](const auto& queue) {
      queue.all_to_all(std::as_bytes(in), std::as_writable_bytes(out));
    });
  }

  /// Every rank's `inout` becomes that of `root`.
  template <transferable T>
  void broadcast(std::span<T> inout, int root, where at = where::current()) const {
    const start_order how = blocking(operation::broadcast, uses(inout, inout), at);
    start_broadcast(inout, root, how).wait(at);
  }
  template <transferable T>
  pending start_broadcast(std::span<T> inout, int root, const start_order& how = where::current()) const {
    check_root(root, size(), "broadcast", how.at);
    check_bytes(inout, "broadcast", how.at);
    return start<operation::broadcast>(uses(inout, inout), inout.size_bytes(), how, [=](const auto& queue) {
      queue.broadcast(std::as_writable_bytes(inout), root);
    });
  }

  /// The root's `out` (size x in elements) becomes all ranks' `in` in rank order; the others' `out` may be empty. In
  /// place when the root's `in` is its part of `out`.
  template <transferable T>
  void gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
              where at = where::current()) const {
    const start_order how = blocking(operation::gather, uses(in, out), at);
    start_gather(in, out, root, how).wait(at);
  }
  template <transferable T>
  pending start_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                       const start_order& how = where::current()) const {
    check_root(root, size(), "gather", how.at);
    check_bytes(in, "gather", how.at);
    if (rank() == root) {
      check_length(out.size(), all_parts(in.size(), size()), "gather: the root's output", how.at);
      check_overlap(in, out, part_of(out.data(), in.size()), "gather", how.at);
    }
    return start<operation::gather>(uses(in, out), in.size_bytes(), how, [=](const auto& queue) {
      queue.gather(std::as_bytes(in), std::as_writable_bytes(out), root);
    });
  }

  /// `out` becomes this rank's part of the root's `in` (size x out elements); the others' `in` may be empty. In place
  /// when the root's `out` is its part of `in`.
  template <transferable T>
  void scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
               where at = where::current()) const {
    const start_order how = blocking(operation::scatter, uses(in, out), at);
    start_scatter(in, out, root, how).wait(at);
  }
  template <transferable T>
  pending start_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                        const start_order& how = where::current()) const {
    check_root(root, size(), "scatter", how.at);
    check_bytes(out, "scatter", how.at);
    if (rank() == root) {
      check_length(in.size(), all_parts(out.size(), size()), "scatter: the root's input", how.at);
      check_overlap(std::span<const T>(out), in, part_of(in.data(), out.size()), "scatter", how.at);
    }
    return start<operation::scatter>(uses(in, out), out.size_bytes(), how, [=](const auto& queue) {
      queue.scatter(std::as_bytes(in), std::as_writable_bytes(out), root);
    });
  }

  /// Sends and receives as one. Those of a pair meet in the order in which each side lists them, and must agree on
  /// their bytes; NCCL knows no tags, which are not compared. `transfers` is read by the call, not later.
  void exchange(std::span<const p2p> transfers, where at = where::current()) const {
    start_exchange(transfers, blocking(operation::exchange, {}, at)).wait(at);
  }
  pending start_exchange(std::span<const p2p> transfers, const start_order& how = where::current()) const {
    const std::size_t bytes = check_transfers(transfers, size(), how.at);
    return start<operation::exchange>({}, bytes, how, [=](const auto& queue) { queue.exchange(transfers); });
  }
  /// An exchange of one transfer: returns when rank `to` has received it.
  template <class T>
  requires transferable<std::remove_const_t<T>>
  void send(int to, std::span<T> data, int tag = 0, where at = where::current()) const {
    const p2p one = p2p::send(to, data, tag);
    exchange({&one, 1}, at);
  }
  template <transferable T>
  void receive(int from, std::span<T> data, int tag = 0, where at = where::current()) const {
    const p2p one = p2p::receive(from, data, tag);
    exchange({&one, 1}, at);
  }

  /// Whether it is the group of this rank alone.
  [[nodiscard]] bool alone() const noexcept { return state_ == nullptr; }
  /// Of a group that is not alone: its communicator.
  [[nodiscard]] typename N::communicator_type communicator() const noexcept { return state_->on; }
  /// The rank's communication stream, shared.
  [[nodiscard]] const std::shared_ptr<channel_type>& shared_channel() const noexcept { return channel_; }
  /// The rank's communication stream, which it shares with all groups of the rank.
  [[nodiscard]] channel_type& in() const noexcept { return *channel_; }

 private:
  template <class In, class Out>
  [[nodiscard]] static buffer_use uses(std::span<In> reads, std::span<Out> writes) noexcept {
    return {std::as_bytes(reads), std::as_bytes(writes)};
  }
  template <class T>
  [[nodiscard]] const T* part_of(const T* whole, std::size_t part) const noexcept {
    return whole + static_cast<std::size_t>(rank()) * part;
  }
  // A blocking call uses no buffer that is in flight.
  [[nodiscard]] start_order blocking(operation what, const buffer_use& buffers, const where& at) const {
    channel_->expect_free(what, buffers, at);
    return at;
  }
  template <class T, class Op>
  [[nodiscard]] pending queue_all_reduce(std::span<const T> in, std::span<T> out, Op op, const start_order& how) const {
    return start<operation::all_reduce>(uses(in, out), in.size_bytes(), how, [=](const auto& queue) {
      if constexpr (Sums == sums::fixed_order)
        queue.template ordered_all_reduce<T>(in, out, op);
      else
        queue.template all_reduce<T>(in, out, op);
    });
  }
  template <operation What, class Queue>
  [[nodiscard]] pending start(const buffer_use& buffers, std::size_t bytes, const start_order& how,
                              const Queue& queue) const {
    if (alone()) {
      const call_site site{What, 0, channel_->next_alone(), bytes, how.at};
      return channel_->launch(site, buffers, how, limit_,
                              [&] { queue(lone_operations<Api>(channel_->stream(), channel_->number(), how.at)); });
    }
    const call_site site{What, state_->number, state_->operations++, bytes, how.at};
    return channel_->launch(site, buffers, how, limit_,
                            [&] { queue(operations<Api, N>(*channel_, state_->on, state_->rank, size(), how.at)); });
  }

  std::shared_ptr<channel_type> channel_;
  std::shared_ptr<group_state<N>> state_;
  duration limit_;
};

}  // namespace belay::inline BELAY_ABI::nccl
