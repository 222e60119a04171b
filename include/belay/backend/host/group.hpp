// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A group of ranks of this machine: the handle that user code calls. Every operation exists blocking, run by the
// calling thread, and started, run by the rank's communication stream in launch order; the two never mix,
// because each group has a meeting point for either.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/backend/host/async_stream.hpp"
#include "belay/backend/host/collectives.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/backend/host/p2p/p2p_transport.hpp"
#include "belay/backend/host/rendezvous/group_state.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/comm/call_guard.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/symmetric_region.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// One rank's handle onto an ordered set of ranks. Copies are the same handle. Belongs to the rank's thread, which
/// makes one call at a time, and to the body that the world runs: in checked builds a call from a second thread, from a
/// forked child or after the run is a `usage_error`. One that outlives the run may go at any time.
///
/// Collectives: all ranks of the group call the same ones in the same order with the same sizes; otherwise
/// every rank gets `comm_error` before any output is written. On return this rank's buffers are its own again
/// and hold the result. Sizes are in elements. Errors: `usage_error` for arguments that make no sense here,
/// `comm_error` (mismatch, peer_failed, timeout) for the group; after the latter every call fails the same way.
class group {
 public:
  group(std::shared_ptr<group_state> state, int rank, std::shared_ptr<async_stream> stream) noexcept
      : state_(std::move(state)), rank_(rank), limit_(state_->world().timeout()), stream_(std::move(stream)) {}

  /// The same group, whose calls wait so long for peers instead of the world's timeout. Throws usage_error.
  [[nodiscard]] group within(std::chrono::duration<double> timeout, where at = where::current()) const {
    group out = *this;
    out.limit_ = checked_timeout(timeout, at);
    return out;
  }

  /// This rank's number in the group.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return state_->size(); }
  /// Checked builds: has the rank to itself until it goes, for `what`, which lives as long. Throws usage_error.
  [[nodiscard]] call_guard::entry checked_call(const char* what, const where& at) const {
    return {stream_->guard(), what, at};
  }

  /// The ranks of the world that the group is made of, in group order.
  [[nodiscard]] std::span<const int> members() const noexcept { return state_->members(); }

  void barrier(where at = where::current()) const { host::barrier(here(operation::barrier, at).me, at); }

  /// Every rank's `inout` becomes the reduction over all, added in rank order.
  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<T> inout, Op op, where at = where::current()) const {
    host::all_reduce<T>(here(operation::all_reduce, inout, inout, at).me, inout, inout, op, at);
  }
  /// The same out of place: `in` is only read.
  template <reducible T, reduction_tag Op>
  void all_reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                  where at = where::current()) const {
    host::all_reduce<T>(here(operation::all_reduce, in, out, at).me, in, out, op, at);
  }

  /// `out` becomes this rank's part of the reduction of `in` (size x out elements). In place when `out` is
  /// that part of `in`.
  template <reducible T, reduction_tag Op>
  void reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                      where at = where::current()) const {
    host::reduce_scatter<T>(here(operation::reduce_scatter, in, out, at).me, in, out, op, at);
  }

  /// `inout` is divided by `counts` (one per rank); this rank's range becomes the reduction, the others keep
  /// what they held.
  template <reducible T, reduction_tag Op>
  void reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op,
                        where at = where::current()) const {
    host::reduce_scatter_v(here(operation::reduce_scatter_v, inout, inout, at).me, inout, counts, op, at);
  }

  /// `out` (size x in elements) becomes all ranks' `in` in rank order. In place when `in` is this rank's part of it.
  template <transferable T>
  void all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    host::all_gather<T>(here(operation::all_gather, in, out, at).me, in, out, at);
  }

  /// `inout` is divided by `counts` (one per rank); this rank's range is what it gives, the others are filled.
  template <transferable T>
  void all_gather_v(std::span<T> inout, std::span<const std::size_t> counts, where at = where::current()) const {
    host::all_gather_v(here(operation::all_gather_v, inout, inout, at).me, inout, counts, at);
  }

  /// Part q of `in` goes to rank q; part q of `out` comes from rank q. Parts are equal. In place when `out` is `in`.
  template <transferable T>
  void all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out, where at = where::current()) const {
    host::all_to_all<T>(here(operation::all_to_all, in, out, at).me, in, out, at);
  }

  /// As all_to_all with parts of any size, packed in rank order. What i sends to j must be what j expects of i.
  /// In place when `out` is `in` and the counts of both are equal.
  template <transferable T>
  void all_to_all_v(std::span<const std::type_identity_t<T>> in, std::span<const std::size_t> send_counts,
                    std::span<T> out, std::span<const std::size_t> receive_counts, where at = where::current()) const {
    host::all_to_all_v<T>(here(operation::all_to_all_v, in, out, at).me, in, send_counts, out, receive_counts, at);
  }

  /// Every rank's `inout` becomes that of `root`.
  template <transferable T>
  void broadcast(std::span<T> inout, int root, where at = where::current()) const {
    host::broadcast(here(operation::broadcast, inout, inout, at).me, inout, root, at);
  }

  /// The root's `inout` becomes the reduction over all, added in rank order; the others keep what they held.
  template <reducible T, reduction_tag Op>
  void reduce(std::span<T> inout, Op op, int root, where at = where::current()) const {
    host::reduce<T>(here(operation::reduce, inout, inout, at).me, inout, inout, op, root, at);
  }
  /// The same out of place: `in` is only read, and only the root has an `out`.
  template <reducible T, reduction_tag Op>
  void reduce(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op, int root,
              where at = where::current()) const {
    host::reduce<T>(here(operation::reduce, in, out, at).me, in, out, op, root, at);
  }

  /// The root's `out` (size x in elements) becomes all ranks' `in` in rank order; the others' `out` may be empty. In
  /// place when the root's `in` is its part of `out`.
  template <transferable T>
  void gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
              where at = where::current()) const {
    host::gather<T>(here(operation::gather, in, out, at).me, in, out, root, at);
  }

  /// `out` becomes this rank's part of the root's `in` (size x out elements); the others' `in` may be empty. In
  /// place when the root's `out` is its part of `in`.
  template <transferable T>
  void scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
               where at = where::current()) const {
    host::scatter<T>(here(operation::scatter, in, out, at).me, in, out, root, at);
  }

  /// Grouped sends and receives: all progress at the same time, and the call returns when each has met its
  /// partner and its bytes have moved. A pair that disagrees on bytes or tag is a mismatch.
  void exchange(std::span<const p2p> transfers, where at = where::current()) const {
    const call_guard::entry mine = checked_call(name(operation::exchange), at);
    stream_->report_abandoned(at);
    state_->exchange(lane::caller).run(transfers, limit_, at);
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

  // Started operations. What they are given (buffers, counts, transfers) stays as it is until `wait()` returns. Counts
  // that make no sense are a usage_error of the start.

  pending start_barrier(where at = where::current()) const {
    return start(
        operation::barrier, [=](collective_context me) { host::barrier(me, at); }, {}, at);
  }
  template <reducible T, reduction_tag Op>
  pending start_all_reduce(std::span<T> inout, Op op, where at = where::current()) const {
    return start(
        operation::all_reduce, [=](collective_context me) { host::all_reduce<T>(me, inout, inout, op, at); },
        touches(inout, inout), at);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, Op op,
                               where at = where::current()) const {
    return start(
        operation::reduce_scatter, [=](collective_context me) { host::reduce_scatter<T>(me, in, out, op, at); },
        touches(in, out), at);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce_scatter_v(std::span<T> inout, std::span<const std::size_t> counts, Op op,
                                 where at = where::current()) const {
    check_division(inout, counts, size(), "reduce_scatter_v", "reduce_scatter_v: the buffer", at);
    return start(
        operation::reduce_scatter_v, [=](collective_context me) { host::reduce_scatter_v(me, inout, counts, op, at); },
        touches(inout, inout), at);
  }
  template <transferable T>
  pending start_all_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           where at = where::current()) const {
    return start(
        operation::all_gather, [=](collective_context me) { host::all_gather<T>(me, in, out, at); }, touches(in, out),
        at);
  }
  template <transferable T>
  pending start_all_gather_v(std::span<T> inout, std::span<const std::size_t> counts,
                             where at = where::current()) const {
    check_division(inout, counts, size(), "all_gather_v", "all_gather_v: the buffer", at);
    return start(
        operation::all_gather_v, [=](collective_context me) { host::all_gather_v(me, inout, counts, at); },
        touches(inout, inout), at);
  }
  template <transferable T>
  pending start_all_to_all(std::span<const std::type_identity_t<T>> in, std::span<T> out,
                           where at = where::current()) const {
    return start(
        operation::all_to_all, [=](collective_context me) { host::all_to_all<T>(me, in, out, at); }, touches(in, out),
        at);
  }
  template <transferable T>
  pending start_all_to_all_v(std::span<const std::type_identity_t<T>> in, std::span<const std::size_t> send_counts,
                             std::span<T> out, std::span<const std::size_t> receive_counts,
                             where at = where::current()) const {
    check_all_to_all_v<T>(in, send_counts, out, receive_counts, size(), at);
    const auto work = [=](collective_context me) {
      host::all_to_all_v<T>(me, in, send_counts, out, receive_counts, at);
    };
    return start(operation::all_to_all_v, work, touches(in, out), at);
  }
  template <transferable T>
  pending start_broadcast(std::span<T> inout, int root, where at = where::current()) const {
    return start(
        operation::broadcast, [=](collective_context me) { host::broadcast(me, inout, root, at); },
        touches(inout, inout), at);
  }
  template <reducible T, reduction_tag Op>
  pending start_reduce(std::span<T> inout, Op op, int root, where at = where::current()) const {
    return start(
        operation::reduce, [=](collective_context me) { host::reduce<T>(me, inout, inout, op, root, at); },
        touches(inout, inout), at);
  }
  template <transferable T>
  pending start_gather(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                       where at = where::current()) const {
    return start(
        operation::gather, [=](collective_context me) { host::gather<T>(me, in, out, root, at); }, touches(in, out),
        at);
  }
  template <transferable T>
  pending start_scatter(std::span<const std::type_identity_t<T>> in, std::span<T> out, int root,
                        where at = where::current()) const {
    return start(
        operation::scatter, [=](collective_context me) { host::scatter<T>(me, in, out, root, at); }, touches(in, out),
        at);
  }
  pending start_exchange(std::span<const p2p> transfers, where at = where::current()) const {
    return stream_->launch(
        operation::exchange, state_,
        [=, limit = limit_](group_state& state) { state.exchange(lane::stream).run(transfers, limit, at); }, {}, at);
  }

  /// The manner in which this rank's last blocking operation went that no line or page held: a usual one tells no more.
  [[nodiscard]] variant last_variant() const noexcept { return state_->collective_endpoint(lane::caller).chosen(); }

  /// Memory of `bytes` on every rank, mapped on all; collective, the same size everywhere.
  [[nodiscard]] symmetric_region make_symmetric(std::size_t bytes, where at = where::current()) const {
    const entered call = here(operation::make_symmetric, at);
    const collective_context me = call.me;
    const fingerprint print{operation::make_symmetric, reduction::none, {element_code::opaque, 1}, -1, bytes, 0};
    me.endpoint->enter_rendezvous(call_buffers{.print = print}, me.limit, at);  // all want the same
    me.endpoint->exit_rendezvous();
    region_provider& source = *state_->regions();
    symmetric_region out;
    region_provider::ticket told;
    if (me.rank() == 0) {
      try {
        out = source.make(me.size(), bytes, at);
        told = source.ticket_for(out);
      } catch (const budget_error& refused) {
        told = {0, std::max<std::uint64_t>(refused.requested_bytes(), 1), refused.available_bytes()};
      }
    }
    const fingerprint telling{operation::make_symmetric, reduction::none, {element_code::opaque, sizeof told}, 0, 1, 0};
    me.endpoint->eager_round(algorithm::flag_line, telling, &told, sizeof told, me.limit, at);
    if (me.rank() != 0) std::memcpy(&told, me.endpoint->payloads()(0), sizeof told);
    if (told.bytes > 0) throw budget_error("symmetric memory", told.bytes, told.available, at);
    if (me.rank() != 0) out = source.open(told, me.size(), bytes, at);
    host::barrier(me, at);  // until here the first rank holds it for all
    source.share(out, rank_set::of(state_->members(), state_->id()));
    return out;
  }

 private:
  // Has the rank to itself until the end of the call.
  struct entered {
    entered(const group& self, operation what, const buffer_use& buffers, const where& at)
        : turn(self.stream_->guard(), name(what), at), me(self.unlent(what, buffers, at)) {}

    [[no_unique_address]] call_guard::entry turn;
    collective_context me;
  };

  template <class In, class Out>
  [[nodiscard]] static buffer_use touches(std::span<In> reads, std::span<Out> writes) noexcept {
    return {std::as_bytes(reads), std::as_bytes(writes)};
  }
  template <class In, class Out>
  [[nodiscard]] entered here(operation what, std::span<In> reads, std::span<Out> writes, where at) const {
    return {*this, what, touches(reads, writes), at};
  }
  [[nodiscard]] entered here(operation what, where at) const { return {*this, what, {}, at}; }
  [[nodiscard]] collective_context unlent(operation what, const buffer_use& buffers, const where& at) const {
    stream_->expect_free(what, buffers, at);
    stream_->report_abandoned(at);
    return {&state_->collective_endpoint(lane::caller), limit_};
  }

  template <class Work>
  pending start(operation what, Work work, const buffer_use& buffers, where at) const {
    return stream_->launch(
        what, state_,
        [work, limit = limit_](group_state& state) {
          work(collective_context{&state.collective_endpoint(lane::stream), limit});
        },
        buffers, at);
  }

  std::shared_ptr<group_state> state_;
  int rank_;
  world_status::clock::duration limit_;
  std::shared_ptr<async_stream> stream_;
};

static_assert(communicator<group> && directly_addressable<group>);
static_assert(can_all_reduce<group, float> && can_all_reduce<group, bf16, maximum_t> &&
              can_reduce_scatter<group, float> && can_reduce_scatter_v<group, double> &&
              can_reduce<group, int, average_t> && can_all_gather<group, int> && can_all_gather_v<group, float> &&
              can_all_to_all<group, float> && can_all_to_all_v<group, float> && can_broadcast<group, char> &&
              can_gather<group, float> && can_scatter<group, float> && can_exchange<group>);
static_assert(can_start_barrier<group> && can_start_all_reduce<group, float> &&
              can_start_reduce_scatter<group, float> && can_start_reduce_scatter_v<group, float> &&
              can_start_reduce<group, float> && can_start_all_gather<group, float> &&
              can_start_all_gather_v<group, float> && can_start_all_to_all<group, float> &&
              can_start_all_to_all_v<group, float> && can_start_broadcast<group, float> &&
              can_start_gather<group, float> && can_start_scatter<group, float> && can_start_exchange<group>);
static_assert(!can_all_reduce<group, fp8_e4m3> && !can_reduce<group, fp8_e4m3> &&
              !can_reduce_scatter<group, fp8_e4m3> && !can_all_reduce<group, bool> && can_all_gather<group, fp8_e4m3>);

}  // namespace host
}  // namespace belay::inline BELAY_ABI
