// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tokens to their experts and back, one-sided over a symmetric heap: a rank writes its rows into the slots of their
// owners and reads the results from there. Rows are neither packed nor sent twice.
//
// Why these synchronisations suffice. A slot is first written after a synchronisation of the group that every rank
// enters after it has leased the slot. A rank releases a slot after its own last access to any rank's copy of it.
// Leases are in the same order on all ranks. So the next user of a slot waits, in that synchronisation, for every
// rank's last access by the slot's previous user. A release therefore needs no synchronisation.
//
//   dispatch: lease inputs and outputs | gather of counts | push rows | barrier         experts read inputs
//   combine:  barrier | pull outputs                                                    experts' outputs are read
//   backward: write gradients over the outputs, lease gradients | barrier               experts read, write
//   finish:   barrier | pull row gradients | release all
//
// A call waits for each of its moves. Where a rank runs two micro-batches in turns (step/flow_pair.hpp), the other one
// computes in between.
//
// These are five synchronisations a layer, on one rank none. More of it: docs/explanation/expert_dispatch.md.
//
// On a host a move is work of a communication, or of the compute stream where all experts are here. On a device it is
// kernels: of the compute stream, or between the operations of a communication, which hand over events. Counts alone go
// by the host. What differs between groups is told in core.hpp.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "belay/comm/device_group.hpp"
#include "belay/comm/group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/stream.hpp"
#include "belay/kernel/elementwise.hpp"
#include "belay/kernel/team.hpp"
#include "belay/parallel/experts/core.hpp"
#include "belay/parallel/experts/handles.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/experts/statistics.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

/// Whether the frame's kit moves rows by kernels of a device.
template <class Frame>
concept moves_rows_by_kernels = sorting_kit<std::remove_cvref_t<decltype(std::declval<Frame&>().kit())>>;

/// A move of rows, by value: a stream does it when the host is elsewhere.
template <class Kernel>
struct row_move {
  /// The messages of the exchange, the dispatch and its slot, the kernel of rows, a row a team, and how often.
  row_moves* by;
  moved_rows rows;
  Kernel row;
  std::size_t count;
  row_direction direction;
  where at;
  /// Among those that a queued stream comes to; 0 where the host calls itself.
  std::uint64_t number = 0;

  /// By the host: in a communication, or where all experts are here, with null.
  void on_host(const group_calls* calls) const {
    if (by->was_skipped(number)) return by->move_nothing(*calls, rows, direction, at);
    if (direction == row_direction::dispatched) by->count(calls, rows, at);
    if (direction == row_direction::to_tokens) by->to_tokens(calls, rows, at);
    kernel::for_each_row(count, row);
    if constexpr (requires { row.finish(); }) row.finish();
    if (direction != row_direction::to_tokens) by->to_experts(calls, rows, at);
  }

  /// In a communication of ranks that compute on a device. No row is written before all that peers had queued at their
  /// dispatch is over: they wait for counts.
  template <device_stream Stream>
  void on_device(const group_calls& calls) const {
    Stream& queue = stream_for_kernels<Stream>(calls.device(), at);
    const auto travel = [&](p2p::direction packed) {
      if (rows.packed == nullptr) return calls.barrier(at);
      const auto copy = [&](void* to, const void* from, std::size_t bytes) { queue.copy(to, from, bytes, at); };
      by->send_rows(calls, rows, packed, copy, at);
    };
    if (direction == row_direction::dispatched) place(calls, queue);
    if (direction == row_direction::to_tokens) travel(p2p::direction::receive);
    queue.teams(count, row);
    if (direction != row_direction::to_tokens) travel(p2p::direction::send);
  }

 private:
  template <class Stream>
  void place(const group_calls& calls, Stream& queue) const {
    if (rows.packed == nullptr) by->count_on_device(calls, rows, at);
    if (by->needed_now() > rows.capacity) queue.each(1, noted_rows{{rows.found, {}}, by->needed_now()});
    by->place_counts(calls, rows, at);
    const auto* const shifts = reinterpret_cast<const std::int32_t*>(rows.cuts);
    const places_of which = rows.packed == nullptr ? places_of::expert_slots : places_of::packed_rows;
    queue.each(rows.choices.size(), fitted_places{rows.places, rows.choices.data(), shifts, rows.capacity, which});
  }
};

/// One rank of an expert group, for rows of T. All ranks of the group make the same calls in the same order. One
/// exchange serves all layers of a rank, and allocates nothing after `prepare`. The heap outlives it and has no other
/// user.
template <class T>
class expert_exchange final : public exchange_core {
 public:
  using value_type = T;
  using exchange_core::slot_type;

  /// Throws `usage_error` where experts cannot be divided among the ranks, or k of them not be chosen; and of groups
  /// whose ranks reach no memory of each other, or have no operations with varying counts.
  expert_exchange(const belay::group& ranks, symmetric_heap<belay::group>& heap, const expert_settings& settings,
                  where at = where::current())
      : exchange_core(ranks, heap, settings, sizeof(T), at) {}

  /// Over symmetric memory of a run (train/run.hpp), which is planned and grows when a step is replayed. Dispatches are
  /// made in steps and passes that name the exchange; others are a usage_error.
  template <class Run>
    requires requires(Run& run, const belay::group& ranks, where at) {
      { run.windows(ranks, at) } -> std::same_as<symmetric_heap<belay::group>&>;
    }
  expert_exchange(Run& run, const belay::group& ranks, const expert_settings& settings, where at = where::current())
      : expert_exchange(ranks, run.windows(expect_reach(ranks, at), at), settings, at) {
    belong_to_run(run.computes());
  }

  /// Sends each row of `x` [rows, hidden] to the experts of its routing, and fills the routing's global counts. `x` is
  /// not used after the call; the routing's memory is, until `finish`. Rows beyond the capacity are recorded as an
  /// overflow and not sent: their contributions and gradients are zero, and the step must be replayed. One gather of
  /// counts and one barrier of the group, or one exchange of messages; none on one rank.
  template <class Frame>
  BELAY_OPENS [[nodiscard]] dispatched<T> dispatch(Frame& frame, view<const T, 2> x,
                                                   const routing<compute_type_t<T>>& routed,
                                                   where at = where::current()) {
    expect_rows(x, routed.rows, shape().hidden, "dispatch: x", at);
    expect_dispatch(frame.layer(), routed.experts, routed.k, at);
    frame.engine().adopt(*heap_);  // one that was made by hand has followed no stream before
    dispatch_state<T> state;
    state.exchange = this, state.routed = routed;
    state.keep_in(frame, shape());
    if (transport() == row_transport::sent) {
      state.packed = frame.template keep<T>(extents<2>{state.places.size(), shape().hidden});
      state.messages = moves_->messages.take(shape().experts);
    }
    state.inputs = heap_->lease(slot_bytes(), "rows for experts", at);
    state.outputs = heap_->lease(slot_bytes(), "outputs of experts", at);
    state.obligation = frame.open(obligation_kind::dispatched_tokens, 2 * slot_bytes(), x.shape(), at);
    unread_ = unread_ || !frame.rehearsing();
    kernel::findings_record* const found = named_ ? frame.engine().found() : nullptr;
    const bool large = shape().ranks * state.places.size() * shape().hidden * sizeof(T) >= non_temporal_from;
    const auto move = move_of(state, state.inputs, pushed_rows<T>{placed(state, state.inputs), x.data(), large},
                              state.places.size(), row_direction::dispatched, at, found);
    if constexpr (moves_rows_by_kernels<Frame>) {
      frame.kit().sort({routed.choices.data(), {routed.choices.size()}}, shape().experts,
                       {state.places.data(), {state.places.size()}});
      if (transport() == row_transport::here) count_here(frame, routed, move.rows);
    }
    move_rows(frame, move, state.inputs);
    if (!frame.forward_only() && statistics().layers() > 0) record(frame, routed, at);
    return dispatched<T>{std::move(state)};
  }

 private:
  friend class dispatched<T>;
  friend class merged<T>;
  friend class returning<T>;
  using state_type = dispatch_state<T>;
  using number = compute_type_t<T>;

  // `beside` may have no data.
  template <class Frame, class Y>
  void combine(Frame& frame, state_type& state, view<Y, 2> y, view<const Y, 2> beside, where at) {
    expect_rows(y, state.routed.rows, shape().hidden, "combine: y", at);
    if (beside.data() != nullptr) expect_rows(beside, state.routed.rows, shape().hidden, "combine: beside", at);
    settle(frame, state, at);
    const pulled_rows<T, Y> pulled{placed(state, state.outputs), state.routed.weights.data(), y.data(), beside.data()};
    move_rows(frame, move_of(state, state.outputs, pulled, state.routed.rows, row_direction::to_tokens, at),
              state.outputs);
    if (frame.forward_only()) {
      release(state, at);
      state.exchange = nullptr;
    } else {
      state.obligation = frame.open(obligation_kind::combined_tokens, 2 * slot_bytes(), y.shape(), at);
    }
  }

  template <class Frame, class Dy>
  void backward(Frame& frame, state_type& state, view<const Dy, 2> dy, view<number, 2> dweights, where at) {
    expect_rows(dy, state.routed.rows, shape().hidden, "backward: dy", at);
    if (dweights.shape() != extents<2>{state.routed.rows, shape().k})
      throw usage_error("backward: dweights is [rows, k] of the routing", at);
    settle(frame, state, at);
    state.gradients = heap_->lease(slot_bytes(), "row gradients of experts", at);
    state.obligation = frame.open(obligation_kind::returning_gradients, 3 * slot_bytes(), dy.shape(), at);
    const returned_rows<T, Dy> returned{placed(state, state.outputs), state.routed.weights.data(), dy.data(),
                                        dweights.data()};
    move_rows(frame, move_of(state, state.outputs, returned, state.places.size(), row_direction::to_experts, at),
              state.outputs);
  }

  template <class Frame, class Dx>
  void finish_returning(Frame& frame, state_type& state, view<Dx, 2> dx, where at) {
    expect_rows(dx, state.routed.rows, shape().hidden, "finish: dx", at);
    settle(frame, state, at);
    const pulled_rows<T, Dx> pulled{placed(state, state.gradients), nullptr, dx.data()};
    move_rows(frame, move_of(state, state.gradients, pulled, state.routed.rows, row_direction::to_tokens, at),
              state.gradients);
    heap_->release(state.gradients, at);
    release(state, at);
  }

  template <class Frame>
  void abandon_dispatch(Frame& frame, state_type& state, where at) {
    settle(frame, state, at);
    release(state, at);
  }
  void release(state_type& state, where at) {
    heap_->release(state.outputs, at);
    heap_->release(state.inputs, at);
    if (transport() == row_transport::sent) moves_->messages.give_back(state.messages);
  }

  // The memory of a handle that outlived its step was reclaimed, and is not touched.
  template <class Frame>
  static void settle(Frame& frame, const state_type& state, where at) {
    const bool owed = frame.engine().obligations().is_open(state.obligation);
    frame.close(state.obligation, at);
    if (!owed) throw usage_error("a handle of an expert exchange was used after its step had ended", at);
  }

  [[nodiscard]] view<T, 2> rows_in(const slot_type& slot) const {
    return {reinterpret_cast<T*>(slot.local()), {shape().capacity, shape().hidden}};
  }
  // Rows of the slot as kernels find them: here, packed, or on each rank.
  [[nodiscard]] placed_rows<T> placed(const state_type& state, const slot_type& slot) const {
    T* first = rows_in(slot).data();
    std::size_t apart = 0;
    if (transport() == row_transport::sent) {
      first = state.packed.data();
    } else if (transport() != row_transport::here) {
      first = reinterpret_cast<T*>(heap_->base(0) + slot.offset_bytes());
      apart = static_cast<std::size_t>(heap_->base(1) - heap_->base(0));
    }
    return {first, apart, state.routed.choices.data(), state.places.data(), shape().local(), shape().k, shape().hidden};
  }
  template <class Kernel>
  [[nodiscard]] row_move<Kernel> move_of(const state_type& state, const slot_type& slot, const Kernel& row,
                                         std::size_t count, row_direction direction, where at,
                                         kernel::findings_record* found = nullptr) const {
    const auto& routed = state.routed;
    return {moves_.get(),
            {routed.choices, routed.counts.data(), routed.global_counts.data(), state.places.data(),
             state.offsets.data(), state.cuts.data(), shape().capacity, found, heap_, slot.offset_bytes(),
             reinterpret_cast<std::byte*>(state.packed.data()), state.messages},
            row,
            count,
            direction,
            at};
  }

  // Where all experts are on this rank of a device: the host reads no counts.
  template <class Frame>
  void count_here(Frame& frame, const routing<number>& routed, const moved_rows& rows) {
    const std::size_t experts = shape().experts, choices = rows.choices.size();
    moves_->note_needed(choices);
    frame.teams(1, counted_offsets{routed.counts.data(), rows.global_counts, rows.offsets, experts, rows.capacity});
    if (choices <= rows.capacity) return;
    frame.each(choices, places_within{rows.places, rows.capacity});
    frame.each(1, noted_rows{{rows.found, {}}, choices});
  }

  template <class Frame>
  void record(Frame& frame, const routing<number>& routed, where at) {
    const std::size_t layer = entry_of(frame.layer_index()), micro_batch = frame.micro_batch();
    if constexpr (moves_rows_by_kernels<Frame>)
      statistics().record_in(frame, layer, micro_batch, routed, at);
    else
      frame.run([to = &statistics(), layer, micro_batch, routed, at] { to->record(layer, micro_batch, routed, at); });
  }

  // In the order of the compute stream: of it where all experts are here, else one communication of the group, after
  // what it has queued. `slot` is used until that is over.
  template <class Frame, class Kernel>
  void move_rows(Frame& frame, const row_move<Kernel>& move, const slot_type& slot) {
    auto& stream = frame.engine().compute();
    using stream_type = std::remove_cvref_t<decltype(stream)>;
    if constexpr (moves_rows_by_kernels<Frame>) {
      if (transport() == row_transport::here) return frame.teams(move.count, move.row);
      start(frame, move, slot, [move](const group_calls& calls) { move.template on_device<stream_type>(calls); });
    } else {
      if (transport() == row_transport::here) return frame.run([move] { move.on_host(nullptr); });
      if (runs_later(stream)) {
        row_move<Kernel> queued = move;
        queued.number = moves_->announce();
        stream.run([by = queued.by, number = queued.number, at = queued.at] { by->come_to(number, at); });
        return start(frame, move, slot, [queued](const group_calls& calls) { queued.on_host(&calls); });
      }
      frame.run_on_host([&] {
        const group_calls calls = group().calls();
        move.on_host(&calls);
      });
      frame.engine().hand_over();
    }
  }
  template <class Frame, class Kernel, class Work>
  void start(Frame& frame, const row_move<Kernel>& move, const slot_type& slot, const Work& work) {
    auto& stream = frame.engine().compute();
    const start_order how = order_after(stream.record(), move.at);
    if constexpr (moves_rows_by_kernels<Frame>)
      if (transport() == row_transport::sent && move.direction == row_direction::dispatched)
        moves_->count_to_send(group(), move.rows, how);
    pending under_way = group().start_composite(operation::exchange, work, how);
    const stream_event over = under_way.event();
    heap_->used_until(over, slot);
    std::move(under_way).in_start_order(move.at);
    const auto wait = [&] {
      if constexpr (requires { stream.wait(over, move.at); })
        stream.wait(over, move.at);
      else
        stream.wait(over);
    };
    try {
      frame.engine().hand_over();  // another micro-batch computes while rows are on their way
    } catch (...) {
      wait();  // what the stream gets after the step that is cut off
      throw;
    }
    wait();
  }
};

template <class Run>
expert_exchange(Run&, const group&, expert_settings) -> expert_exchange<float>;

}  // namespace belay::inline BELAY_ABI
