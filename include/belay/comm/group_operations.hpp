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

#include "belay/comm/buffers_in_flight.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/fingerprint.hpp"
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
/// `Group` derives from this and executes: `run<operation>(uses, at, arguments...)` at once, `start<operation>(...)`
/// by its stream.
template <class Group>
class group_operations {
 public:
  /// Returns when all ranks have called it.
  void barrier(where at = where::current()) const { self().template run<operation::barrier>({}, at); }

  /// Every rank's `inout` becomes the reduction over all, added in rank order.
  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<T> inout, Op op, where at = where::current()) const {
    self().template run<operation::all_reduce>(uses(inout, inout), at, std::span<const T>(inout), inout, op);
  }
  /// The same out of place: `in` is only read.
  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                  where at = where::current()) const {
    self().template run<operation::all_reduce>(uses(in, out), at, in, out, op);
  }

  /// `out` becomes this rank's part of the reduction of `in` (size x out elements). In place when `out` is
  /// that part of `in`.
  template <reducible T, reduction_tag Op>
  void reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                      where at = where::current()) const {
    self().template run<operation::reduce_scatter>(uses(in, out), at, in, out, op);
  }

  /// `inout` is divided by `counts` (one per rank); this rank's range becomes the reduction, the others keep
  /// what they held.
  template <reducible T, reduction_tag Op>
  void reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op,
                        where at = where::current()) const {
    self().template run<operation::reduce_scatter_v>(uses(inout, inout), at, inout, counts, op);
  }

  /// `out` (size x in elements) becomes all ranks' `in` in rank order. In place when `in` is this rank's part of it.
  template <transferable T>
  void all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    self().template run<operation::all_gather>(uses(in, out), at, in, out);
  }

  /// `inout` is divided by `counts` (one per rank); this rank's range is what it gives, the others are filled.
  template <transferable T>
  void all_gather_v(std::span<T> inout, std::span<const std::size_t> counts, where at = where::current()) const {
    self().template run<operation::all_gather_v>(uses(inout, inout), at, inout, counts);
  }

  /// Part q of `in` goes to rank q; part q of `out` comes from rank q. Parts are equal. In place when `out` is `in`.
  template <transferable T>
  void all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    self().template run<operation::all_to_all>(uses(in, out), at, in, out);
  }

  /// As all_to_all with parts of any size, packed in rank order. What i sends to j must be what j expects of i.
  /// In place when `out` is `in` and the counts of both are equal.
  template <transferable T>
  void all_to_all_v(std::span<const std::type_identity_t<T>> in, std::span<const std::size_t> send_counts,
                    std::span<T> out, std::span<const std::size_t> receive_counts, where at = where::current()) const {
    self().template run<operation::all_to_all_v>(uses(in, out), at, in, send_counts, out, receive_counts);
  }

  /// Every rank's `inout` becomes that of `root`.
  template <transferable T>
  void broadcast(std::span<T> inout, int root, where at = where::current()) const {
    self().template run<operation::broadcast>(uses(inout, inout), at, inout, root);
  }

  /// The root's `inout` becomes the reduction over all, added in rank order; the others keep what they held.
  template <reducible T, reduction_tag Op>
  void reduce(std::span<T> inout, Op op, int root, where at = where::current()) const {
    self().template run<operation::reduce>(uses(inout, inout), at, std::span<const T>(inout), inout, op, root);
  }
  /// The same out of place: `in` is only read, and only the root has an `out`.
  template <reducible T, reduction_tag Op>
  void reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op, int root,
              where at = where::current()) const {
    self().template run<operation::reduce>(uses(in, out), at, in, out, op, root);
  }

  /// The root's `out` (size x in elements) becomes all ranks' `in` in rank order; the others' `out` may be empty. In
  /// place when the root's `in` is its part of `out`.
  template <transferable T>
  void gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
              where at = where::current()) const {
    self().template run<operation::gather>(uses(in, out), at, in, out, root);
  }

  /// `out` becomes this rank's part of the root's `in` (size x out elements); the others' `in` may be empty. In
  /// place when the root's `out` is its part of `in`.
  template <transferable T>
  void scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
               where at = where::current()) const {
    self().template run<operation::scatter>(uses(in, out), at, in, out, root);
  }

  /// Grouped sends and receives: all progress at the same time, and the call returns when each has met its
  /// partner and its bytes have moved. A pair that disagrees on bytes or tag is a mismatch.
  void exchange(std::span<const p2p> transfers, where at = where::current()) const {
    self().template run<operation::exchange>({}, at, transfers);
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
  // (buffers, counts, transfers) stays as it is until `wait()` returns. Counts that make no sense are a usage_error of
  // the start.

  /// The started form of each collective: the same arguments, returned at once; the buffers are in use until `wait`.
  pending start_barrier(const start_order& how = where::current()) const {
    return self().template start<operation::barrier>({}, how);
  }
  template <reducible T, reduction_tag Op>
  pending start_all_reduce(std::span<T> inout, Op op, const start_order& how = where::current()) const {
    return self().template start<operation::all_reduce>(uses(inout, inout), how, std::span<const T>(inout), inout, op);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                               const start_order& how = where::current()) const {
    return self().template start<operation::reduce_scatter>(uses(in, out), how, in, out, op);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op,
                                 const start_order& how = where::current()) const {
    expect_division(inout, counts, "reduce_scatter_v", "reduce_scatter_v: the buffer", how.at);
    return self().template start<operation::reduce_scatter_v>(uses(inout, inout), how, inout, counts, op);
  }
  template <transferable T>
  pending start_all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           const start_order& how = where::current()) const {
    return self().template start<operation::all_gather>(uses(in, out), how, in, out);
  }
  template <transferable T>
  pending start_all_gather_v(std::span<T> inout, std::span<const std::size_t> counts,
                             const start_order& how = where::current()) const {
    expect_division(inout, counts, "all_gather_v", "all_gather_v: the buffer", how.at);
    return self().template start<operation::all_gather_v>(uses(inout, inout), how, inout, counts);
  }
  template <transferable T>
  pending start_all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           const start_order& how = where::current()) const {
    return self().template start<operation::all_to_all>(uses(in, out), how, in, out);
  }
  template <transferable T>
  pending start_all_to_all_v(std::span<const std::type_identity_t<T>> in, std::span<const std::size_t> send_counts,
                             std::span<T> out, std::span<const std::size_t> receive_counts,
                             const start_order& how = where::current()) const {
    if constexpr (!moves_nothing<Group>)
      check_all_to_all_v(in, send_counts, out, receive_counts, self().size(), how.at);
    return self().template start<operation::all_to_all_v>(uses(in, out), how, in, send_counts, out, receive_counts);
  }
  template <transferable T>
  pending start_broadcast(std::span<T> inout, int root, const start_order& how = where::current()) const {
    return self().template start<operation::broadcast>(uses(inout, inout), how, inout, root);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce(std::span<T> inout, Op op, int root, const start_order& how = where::current()) const {
    return self().template start<operation::reduce>(uses(inout, inout), how, std::span<const T>(inout), inout, op,
                                                    root);
  }
  template <transferable T>
  pending start_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                       const start_order& how = where::current()) const {
    return self().template start<operation::gather>(uses(in, out), how, in, out, root);
  }
  template <transferable T>
  pending start_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                        const start_order& how = where::current()) const {
    return self().template start<operation::scatter>(uses(in, out), how, in, out, root);
  }
  pending start_exchange(std::span<const p2p> transfers, const start_order& how = where::current()) const {
    return self().template start<operation::exchange>({}, how, transfers);
  }

 private:
  [[nodiscard]] const Group& self() const noexcept { return static_cast<const Group&>(*this); }

  template <class In, class Out>
  [[nodiscard]] static buffer_use uses(std::span<In> reads, std::span<Out> writes) noexcept {
    return {std::as_bytes(reads), std::as_bytes(writes)};
  }
  template <class T>
  void expect_division(std::span<T> inout, std::span<const std::size_t> counts, const char* what, const char* whose,
                       const where& at) const {
    if constexpr (!moves_nothing<Group>) check_division(inout, counts, self().size(), what, whose, at);
  }
};

}  // namespace belay::inline BELAY_ABI
