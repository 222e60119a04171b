// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a group of ranks can do, with its contracts: the operations as members, the same for every backend and for
// rehearsals. Each exists blocking, and started, run by the rank's communication stream in launch order. The
// collectives of a group have one order: a blocking one runs on the calling thread where nothing is in flight, and else
// in its turn. Transfers between pairs are blocking or started on both sides.
//
//   const auto& group = rank.world();
//   group.all_reduce(std::span(loss), belay::sum);                        // returns when `loss` is the sum
//   belay::pending sum = group.start_all_reduce(std::span(grad), belay::sum);
//   compute();                                                            // not with `grad`
//   std::move(sum).wait();                                                // `grad` is the sum, and the rank's again
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/comm/op_call.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/pending.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// Collectives: all ranks of the group call the same ones in the same order with the same sizes; otherwise every rank
/// gets `comm_error` before any output is written. On return this rank's buffers are its own again and hold the
/// result. Sizes are in elements. Errors: `usage_error` for arguments that make no sense here, `comm_error` (mismatch,
/// peer_failed, timeout) for the group; after the latter every call fails the same way.
///
/// `Group` derives from this and executes what was checked: `run_call(op_call)` at once, `start_call(op_call, order)`
/// by its stream.
template <class Group>
class group_operations {
 public:
  /// Returns when all ranks have called it.
  void barrier(where at = where::current()) const { run(op_call::barrier(at)); }

  /// Every rank's `inout` becomes the reduction over all, added in rank order.
  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<T> inout, Op, where at = where::current()) const {
    run(op_call::reduce<operation::all_reduce, Op, T>(inout, inout, at));
  }
  /// Every rank's `out` becomes the reduction of all ranks' `in`, added in rank order; `in` is only read.
  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op,
                  where at = where::current()) const {
    run(op_call::reduce<operation::all_reduce, Op, T>(in, out, at));
  }

  /// `out` becomes this rank's part of the reduction of `in` (size x out elements). In place when `out` is
  /// that part of `in`.
  template <reducible T, reduction_tag Op>
  void reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op,
                      where at = where::current()) const {
    run(op_call::reduce<operation::reduce_scatter, Op, T>(in, out, at));
  }

  /// `inout` is divided by `counts` (one per rank); this rank's range becomes the reduction, the others keep
  /// what they held.
  template <reducible T, reduction_tag Op>
  void reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op,
                        where at = where::current()) const {
    run(op_call::reduce<operation::reduce_scatter_v, Op, T>(inout, inout, at).divided(counts));
  }

  /// `out` (size x in elements) becomes all ranks' `in` in rank order. In place when `in` is this rank's part of it.
  template <transferable T>
  void all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    run(op_call::move<operation::all_gather, T>(in, out, at));
  }

  /// `inout` is divided by `counts` (one per rank); this rank's range is what it gives, the others are filled.
  template <transferable T>
  void all_gather_v(std::span<T> inout, std::span<const std::size_t> counts, where at = where::current()) const {
    run(op_call::move<operation::all_gather_v, T>(inout, inout, at).divided(counts));
  }

  /// Part q of `in` goes to rank q; part q of `out` comes from rank q. Parts are equal. In place when `out` is `in`.
  template <transferable T>
  void all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    run(op_call::move<operation::all_to_all, T>(in, out, at));
  }

  /// As all_to_all with parts of any size, packed in rank order. What i sends to j must be what j expects of i.
  /// In place when `out` is `in` and the counts of both are equal.
  template <transferable T>
  void all_to_all_v(std::span<const std::type_identity_t<T>> in, std::span<const std::size_t> send_counts,
                    std::span<T> out, std::span<const std::size_t> receive_counts, where at = where::current()) const {
    run(op_call::move<operation::all_to_all_v, T>(in, out, at).divided(send_counts).received(receive_counts));
  }

  /// Every rank's `inout` becomes that of `root`.
  template <transferable T>
  void broadcast(std::span<T> inout, int root, where at = where::current()) const {
    run(op_call::move<operation::broadcast, T>(inout, inout, at, root));
  }

  /// The root's `inout` becomes the reduction over all, added in rank order; the others keep what they held.
  template <reducible T, reduction_tag Op>
  void reduce(std::span<T> inout, Op, int root, where at = where::current()) const {
    run(op_call::reduce<operation::reduce, Op, T>(inout, inout, at, root));
  }
  /// The root's `out` becomes the reduction of all ranks' `in`, added in rank order; `in` is only read, and only the
  /// root has an `out`.
  template <reducible T, reduction_tag Op>
  void reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op, int root,
              where at = where::current()) const {
    run(op_call::reduce<operation::reduce, Op, T>(in, out, at, root));
  }

  /// The root's `out` (size x in elements) becomes all ranks' `in` in rank order; the others' `out` may be empty. In
  /// place when the root's `in` is its part of `out`.
  template <transferable T>
  void gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
              where at = where::current()) const {
    run(op_call::move<operation::gather, T>(in, out, at, root));
  }

  /// `out` becomes this rank's part of the root's `in` (size x out elements); the others' `in` may be empty. In
  /// place when the root's `out` is its part of `in`.
  template <transferable T>
  void scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
               where at = where::current()) const {
    run(op_call::move<operation::scatter, T>(in, out, at, root));
  }

  /// Grouped sends and receives: all progress at the same time, and the call returns when each has met its
  /// partner and its bytes have moved. A pair that disagrees on bytes or tag is a mismatch.
  void exchange(std::span<const p2p> transfers, where at = where::current()) const {
    run(op_call::exchange(transfers, at));
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

  // Started operations, each in its turn, or `after(event)` of a stream that fills its buffers. What they are given
  // (buffers, counts, transfers) stays as it is until `wait()` returns. What makes no sense is a usage_error of the
  // start.

  /// The started form of each collective: the same arguments, returned at once; the buffers are in use until `wait`.
  pending start_barrier(const start_order& how = where::current()) const {
    return start(op_call::barrier(how.at), how);
  }
  template <reducible T, reduction_tag Op>
  pending start_all_reduce(std::span<T> inout, Op, const start_order& how = where::current()) const {
    return start(op_call::reduce<operation::all_reduce, Op, T>(inout, inout, how.at), how);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op,
                               const start_order& how = where::current()) const {
    return start(op_call::reduce<operation::reduce_scatter, Op, T>(in, out, how.at), how);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op,
                                 const start_order& how = where::current()) const {
    return start(op_call::reduce<operation::reduce_scatter_v, Op, T>(inout, inout, how.at).divided(counts), how);
  }
  template <transferable T>
  pending start_all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           const start_order& how = where::current()) const {
    return start(op_call::move<operation::all_gather, T>(in, out, how.at), how);
  }
  template <transferable T>
  pending start_all_gather_v(std::span<T> inout, std::span<const std::size_t> counts,
                             const start_order& how = where::current()) const {
    return start(op_call::move<operation::all_gather_v, T>(inout, inout, how.at).divided(counts), how);
  }
  template <transferable T>
  pending start_all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           const start_order& how = where::current()) const {
    return start(op_call::move<operation::all_to_all, T>(in, out, how.at), how);
  }
  template <transferable T>
  pending start_all_to_all_v(std::span<const std::type_identity_t<T>> in, std::span<const std::size_t> send_counts,
                             std::span<T> out, std::span<const std::size_t> receive_counts,
                             const start_order& how = where::current()) const {
    return start(
        op_call::move<operation::all_to_all_v, T>(in, out, how.at).divided(send_counts).received(receive_counts), how);
  }
  template <transferable T>
  pending start_broadcast(std::span<T> inout, int root, const start_order& how = where::current()) const {
    return start(op_call::move<operation::broadcast, T>(inout, inout, how.at, root), how);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce(std::span<T> inout, Op, int root, const start_order& how = where::current()) const {
    return start(op_call::reduce<operation::reduce, Op, T>(inout, inout, how.at, root), how);
  }
  template <transferable T>
  pending start_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                       const start_order& how = where::current()) const {
    return start(op_call::move<operation::gather, T>(in, out, how.at, root), how);
  }
  template <transferable T>
  pending start_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                        const start_order& how = where::current()) const {
    return start(op_call::move<operation::scatter, T>(in, out, how.at, root), how);
  }
  pending start_exchange(std::span<const p2p> transfers, const start_order& how = where::current()) const {
    return start(op_call::exchange(transfers, how.at), how);
  }

 private:
  [[nodiscard]] const Group& self() const noexcept { return static_cast<const Group&>(*this); }

  // Buffers of a rehearsal have no pages, and fit where the run's fit.
  void expect_sense(const op_call& call) const {
    if (!is_rehearsed(self())) check_call(call, layout_rank(self()), self().size());
  }
  void run(const op_call& call) const {
    expect_sense(call);
    self().run_call(call);
  }
  [[nodiscard]] pending start(const op_call& call, const start_order& how) const {
    expect_sense(call);
    return self().start_call(call, how);
  }
};

}  // namespace belay::inline BELAY_ABI
