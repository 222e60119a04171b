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
// These are five synchronisations a layer, on one rank none. More of it: docs/explanation/expert_dispatch.md.
//
// Over MPI the same kernels work on mirrors of the peers' slots: pushed rows are put into the owners' slots, owners
// send rows to mirrors of who pulls them, and `heap.synchronize_in` carries them. Devices: rows_{across,sent}.hpp.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/device_group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/heap_of.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/printable.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/parallel/experts/handles.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/experts/row_moves.hpp"
#include "belay/parallel/experts/rows.hpp"
#include "belay/parallel/experts/rows_across.hpp"
#include "belay/parallel/experts/statistics.hpp"
#include "belay/parallel/routing.hpp"
#include "belay/step/participant.hpp"

namespace belay::inline BELAY_ABI {

/// One rank of an expert group. All ranks of the group make the same calls in the same order. One exchange serves all
/// layers of a stage, and allocates nothing after `prepare`. The heap outlives it and has no other user.
template <class T, class Group, class Heap = typename heap_of<Group>::type>
class expert_exchange final : public participant {
  static_assert(has_symmetric_memory<Group> || has_local_memory<Group>,
                "experts are reached through symmetric memory, or memory that peers send into: take a group that is "
                "directly_addressable, mirrored_by_messages or has_local_memory, as those of all backends are");
  static_assert(has_varying_counts<Group> && can_all_gather_v<Group, std::int64_t>,
                "the ranks of an expert exchange gather their counts with all_gather_v: take a communicator with "
                "has_varying_counts, as belay::host and belay::mpi have");

 public:
  using value_type = T;
  using slot_type = typename Heap::heap_slot;
  using dispatched_type = dispatched<expert_exchange>;

  /// Throws `usage_error` where experts cannot be divided among the ranks, or k of them not be chosen.
  expert_exchange(Group group, Heap& heap, const expert_settings& settings, where at = where::current())
      : group_(std::move(group)),
        heap_(&heap),
        shape_(shape_of(settings, static_cast<std::size_t>(group_.size()),
                        static_cast<std::size_t>(layout_rank(group_)), at)) {
    expect_promise(group_, &group_traits::has_varying_counts,
                   "the ranks of an expert exchange gather their counts with all_gather_v: take a communicator with "
                   "has_varying_counts, as belay::host and belay::mpi have",
                   at);
    set_capacity(settings.capacity, at);
    moves_ = std::make_shared<moves_type>(shape_, group_);
  }

  /// Over symmetric memory of a run (train/run.hpp), which is planned and grows when a step is replayed. Dispatches are
  /// made in steps and passes that name the exchange; others are a usage_error.
  template <class Run>
    requires requires(Run& run, const Group& group, where at) {
      { run.windows(group, at) } -> std::same_as<Heap&>;
    }
  expert_exchange(Run& run, const Group& group, const expert_settings& settings, where at = where::current())
      : expert_exchange(group, run.windows(group, at), settings, at) {
    part_ = participation::waits;
    sends_ = sends_ || (shape_.ranks > 1 && run.computes() == computes_on::own_device);
  }

  expert_exchange(const expert_exchange&) = delete;  // handles point to it
  expert_exchange& operator=(const expert_exchange&) = delete;

  /// Allocates statistics for layers [first_layer, first_layer + layers), counted as `frame.layer_index()`.
  void prepare(std::size_t first_layer, std::size_t layers, std::size_t micro_batches, where at = where::current()) {
    prepare(first_layer, {layers, micro_batches, shape_.experts, shape_.k, at});
  }

  /// Records in the caller's `statistics`, for layers from `first_layer` on, counted as `frame.layer_index()`. They are
  /// over memory of the device where kernels move rows: nobody clears that between steps.
  void prepare(std::size_t first_layer, expert_statistics statistics) noexcept {
    moves_->statistics = std::move(statistics);
    first_layer_ = first_layer;
  }

  /// Sends each row of `x` [rows, hidden] to the experts of its routing, and fills the routing's global counts. `x` is
  /// not used after the call; the routing's memory is, until `finish`. Rows beyond the capacity are recorded as an
  /// overflow and not sent: their contributions and gradients are zero, and the step must be replayed. One gather of
  /// counts and one barrier of the group, or one exchange of messages; none on one rank.
  template <class Frame>
  BELAY_OPENS [[nodiscard]] dispatched_type dispatch(Frame& frame, view<const T, 2> x,
                                                     const routing<compute_type_t<T>>& routed,
                                                     where at = where::current()) {
    expect_rows(x, routed.rows, shape_.hidden, "dispatch: x", at);
    if (part_ == participation::waits) [[unlikely]]
      throw usage_error(
          "dispatch: layer '" + printable(frame.layer()) +
              "' uses an expert exchange that its step does not name: belay::step step{run.engine(), store, experts}",
          at);
    if (routed.experts != shape_.experts || routed.k != shape_.k)
      throw usage_error("dispatch: the routing is over other experts than the exchange", at);
    frame.engine().adopt(*heap_);  // one that was made by hand has followed no stream before
    state_type state;
    state.exchange = this, state.routed = routed;
    state.keep_in(frame, shape_);
    if (sends_) state.packed = frame.template keep<T>(extents<2>{state.places.size(), shape_.hidden});
    if (sends_) state.messages = moves_->messages.take(shape_.experts);
    state.inputs = heap_->lease(slot_bytes(), "rows for experts", at);
    state.outputs = heap_->lease(slot_bytes(), "outputs of experts", at);
    state.obligation = frame.open(obligation_kind::dispatched_tokens, 2 * slot_bytes(), x.shape(), at);
    const bool counted = !frame.forward_only() && moves_->statistics.layers() > 0;
    const std::size_t layer = frame.layer_index() - first_layer_;
    const std::size_t micro_batch = frame.micro_batch();
    unread_ = unread_ || !frame.rehearsing();
    kernel::findings_record* const found = named_ ? frame.engine().found() : nullptr;
    if constexpr (moves_rows_by_kernels<Frame>) sort_choices(frame, routed.choices, shape_.experts, state.places);
    const auto move = [moves = moves_.get(), now = moved(state, state.inputs, found), x = x.data(), counted, layer,
                       micro_batch, at](const auto& group) {
      moves->count(group, now, at);
      if (counted) moves->statistics.record(layer, micro_batch, now.routed, at);
      moves->push(now, x);
      moves->put_rows(now);
      moves->synchronize(group, now, at);
    };
    const auto by_kernels = [&]<class Peers>(const placed_rows<T>& rows, const Peers& peers) {
      auto* const shifts = reinterpret_cast<std::int32_t*>(state.cuts.data());
      const dispatch_counts counts{state.places.data(), state.offsets.data(), shifts, shape_.capacity, found};
      return dispatched_across<T, moves_type, Peers>{
          moves_.get(),        counts,           routed.counts, routed.global_counts.data(),
          state.places.size(), {rows, x.data()}, peers,         at};
    };
    move_rows(frame, state, state.inputs, move, by_kernels, at);
    if constexpr (moves_rows_by_kernels<Frame>)
      if (counted) moves_->statistics.record_in(frame, layer, micro_batch, routed, at);
    return dispatched_type{std::move(state)};
  }

  /// Begins a step: zeroes statistics, and frees slots whose handles were lost in the last step. In checked builds it
  /// is a `usage_error` if the overflow was not taken after the last dispatch; in release builds it stays until it is
  /// taken.
  void begin_step(where at = where::current()) {
    if constexpr (checked(check_level::local))
      if (unread_) throw usage_error("the overflow of the last step's expert dispatches was never read", at);
    moves_->statistics.clear();
    moves_->messages.reclaim();
    heap_->reclaim();
  }

  // What a step asks of its participants.
  void begin(const step_start&, where at) override {
    withdraw();
    named_ = true;
    if (part_ == participation::waits) part_ = participation::takes;
    begin_step(at);
  }
  void finish(const divisor_value&, where) noexcept override { end_part(); }
  void abandon(where) noexcept override { withdraw(); }
  void withdraw() noexcept override {
    static_cast<void>(take_overflow());
    end_part();
  }
  /// An overflow is in the findings of the step, where the dispatch has written it.
  [[nodiscard]] ballot findings() noexcept override {
    static_cast<void>(take_overflow());
    return {};
  }
  [[nodiscard]] std::uint64_t fingerprint() const noexcept override {
    return fnv1a().add_text("expert_exchange").add(shape_.experts).add(shape_.k).add(shape_.capacity).value();
  }
  /// Room for `rows` rows and an eighth more, so that a drifting router does not replay every step.
  void make_room(std::size_t rows, where at) override {
    const std::size_t wanted = rows + rows / 8;
    if (wanted > shape_.capacity) set_capacity(wanted, at);
  }

  /// Leases come from `heap` from now on, so that one exchange can be rehearsed on one heap and run on another. No
  /// handle may be open.
  void use(Heap& heap) noexcept { heap_ = &heap; }

  /// Whether dispatches were made since the overflow was last taken.
  [[nodiscard]] bool overflow_unread() const noexcept { return unread_; }

  /// The capacity that dispatches have needed since the last call. The same on all ranks of the group.
  [[nodiscard]] expert_overflow take_overflow() noexcept {
    unread_ = false;
    return {std::exchange(moves_->needed, std::size_t{0}), shape_.capacity};
  }

  /// Rows that a rank can receive from the next dispatch on. Called with the same number on all ranks, between steps.
  void set_capacity(std::size_t rows, where at = where::current()) {
    expect_capacity(shape_, rows, sizeof(T), at);
    shape_.capacity = rows;
  }

  [[nodiscard]] const expert_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Group& group() const noexcept { return group_; }
  /// Experts of this rank: [first, first + count).
  [[nodiscard]] std::size_t first_local_expert() const noexcept { return shape_.rank * shape_.local(); }
  [[nodiscard]] std::size_t local_experts() const noexcept { return shape_.local(); }
  /// Of one slot. A dispatch leases two until its finish; its backward leases a third until then.
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return shape_.capacity * shape_.hidden * sizeof(T); }
  [[nodiscard]] expert_statistics& statistics() noexcept { return moves_->statistics; }
  [[nodiscard]] const expert_statistics& statistics() const noexcept { return moves_->statistics; }

 private:
  // In a step: it takes part, it waits for one that names it, or it is begun by `begin_step` alone.
  enum class participation { unasked, waits, takes };
  void end_part() noexcept {
    named_ = false;
    part_ = part_ == participation::unasked ? participation::unasked : participation::waits;
  }

  friend class dispatched<expert_exchange>;
  friend class merged<expert_exchange>;
  friend class returning<expert_exchange>;
  using state_type = dispatch_state<expert_exchange>;

  template <class Frame, class Y>
  void combine(Frame& frame, state_type& state, view<Y, 2> y, where at) {
    expect_rows(y, state.routed.rows, shape_.hidden, "combine: y", at);
    settle(frame, state, at);
    const auto move = [moves = moves_.get(), now = moved(state, state.outputs), y = y.data(), at](const auto& group) {
      moves->give_rows(now);
      moves->synchronize(group, now, at);
      for_each_token(pull_weighted<T, Y>{moves->slots_of_peers(now), now.routed.weights.data(), y}, now.routed.rows);
    };
    const auto by_kernels = [&]<class Peers>(const placed_rows<T>& rows, const Peers& peers) {
      const pulled_rows<T, Y> pulled{rows, state.routed.weights.data(), y.data()};
      return after_peers<pulled_rows<T, Y>, Peers>{pulled, state.routed.rows, peers, at};
    };
    move_rows(frame, state, state.outputs, move, by_kernels, at);
    if (frame.forward_only()) {
      release(state, at);
      state.exchange = nullptr;
    } else {
      state.obligation = frame.open(obligation_kind::combined_tokens, 2 * slot_bytes(), y.shape(), at);
    }
  }

  template <class Frame, class Dy>
  void backward(Frame& frame, state_type& state, view<const Dy, 2> dy, view<compute_type_t<T>, 2> dweights, where at) {
    expect_rows(dy, state.routed.rows, shape_.hidden, "backward: dy", at);
    if (dweights.shape() != extents<2>{state.routed.rows, shape_.k}) {
      throw usage_error("backward: dweights is [rows, k] of the routing", at);
    }
    settle(frame, state, at);
    state.gradients = heap_->lease(slot_bytes(), "row gradients of experts", at);
    state.obligation = frame.open(obligation_kind::returning_gradients, 3 * slot_bytes(), dy.shape(), at);
    const auto move = [moves = moves_.get(), now = moved(state, state.outputs), dy = dy.data(),
                       dweights = dweights.data(), at](const auto& group) {
      const auto weights = now.routed.weights.data();
      for_each_token(exchange_gradients<T, Dy>{moves->slots_of_peers(now), weights, dy, dweights}, now.routed.rows);
      moves->put_rows(now);
      moves->synchronize(group, now, at);
    };
    const auto by_kernels = [&]<class Peers>(const placed_rows<T>& rows, const Peers& peers) {
      const returned_rows<T, Dy> returned{rows, state.routed.weights.data(), dy.data(), dweights.data()};
      return before_peers<returned_rows<T, Dy>, Peers>{returned, state.places.size(), peers, at};
    };
    move_rows(frame, state, state.outputs, move, by_kernels, at);
  }

  template <class Frame, class Dx>
  void finish(Frame& frame, state_type& state, view<Dx, 2> dx, where at) {
    expect_rows(dx, state.routed.rows, shape_.hidden, "finish: dx", at);
    settle(frame, state, at);
    const auto move = [moves = moves_.get(), now = moved(state, state.gradients), dx = dx.data(),
                       at](const auto& group) {
      moves->give_rows(now);
      moves->synchronize(group, now, at);
      for_each_token(pull_sum<T, Dx>{moves->slots_of_peers(now), dx}, now.routed.rows);
    };
    const auto by_kernels = [&]<class Peers>(const placed_rows<T>& rows, const Peers& peers) {
      return after_peers<pulled_rows<T, Dx>, Peers>{{rows, nullptr, dx.data()}, state.routed.rows, peers, at};
    };
    move_rows(frame, state, state.gradients, move, by_kernels, at);
    heap_->release(state.gradients, at);
    release(state, at);
  }

  template <class Frame>
  void abandon(Frame& frame, state_type& state, where at) {
    settle(frame, state, at);
    release(state, at);
  }
  void release(state_type& state, where at) {
    heap_->release(state.outputs, at);
    heap_->release(state.inputs, at);
    if (sends_) moves_->messages.give_back(state.messages);
  }

  // The memory of a handle that outlived its step was reclaimed, and is not touched.
  template <class Frame>
  static void settle(Frame& frame, const state_type& state, where at) {
    const bool owed = frame.engine().obligations().is_open(state.obligation);
    frame.close(state.obligation, at);
    if (!owed) throw usage_error("a handle of an expert exchange was used after its step had ended", at);
  }

  using moves_type = row_moves<T, Group, Heap>;
  using rows_type = moved_rows<T, Heap>;
  [[nodiscard]] rows_type moved(const state_type& state, const slot_type& slot,
                                kernel::findings_record* found = nullptr) const {
    return {state.routed, state.places, state.offsets, state.cuts, shape_.capacity, heap_, slot.offset_bytes(), found};
  }

  [[nodiscard]] placed_rows<T> placed(const state_type& state, T* first, std::size_t apart = 0) const {
    return {first, apart, state.routed.choices.data(), state.places.data(), shape_.local(), shape_.k, shape_.hidden};
  }
  // Rows of `slot`, as `by_kernels(rows, peers)` says: where all experts are here on the compute stream, where ranks
  // share a device or have one each in a communication. Else `move`, work of the host.
  template <class Frame, class Move, class ByKernels>
  void move_rows(Frame& frame, const state_type& state, const slot_type& slot, [[maybe_unused]] const Move& move,
                 [[maybe_unused]] const ByKernels& by_kernels, where at) {
    [[maybe_unused]] T* const own = rows_in(slot).data();
    if constexpr (moves_rows_by_kernels<Frame>)
      if (shape_.ranks == 1) return by_kernels(placed(state, own), addressed_peers{}).here(frame);
    if constexpr (has_local_memory<Group> || (works_on_device<Group> && tells_traits<Group>))
      if (sends_to_peers(group_)) {
        const peers_by_messages<T, moves_type> peers{moves_.get(), state.messages, state.packed.data(), own};
        return start(frame, by_kernels(placed(state, peers.packed), peers), slot, at);
      }
    if constexpr (works_on_device<Group> && !has_local_memory<Group>) {  // whose parts are side by side
      T* const first = reinterpret_cast<T*>(heap_->base(0) + slot.offset_bytes());
      const auto apart = static_cast<std::size_t>(heap_->base(1) - heap_->base(0));
      start(frame, by_kernels(placed(state, first, apart), addressed_peers{}), slot, at);
    } else if constexpr (!works_on_device<Group>) {
      communicate(frame, move, slot, at);
    }
  }

  // The compute stream goes on when `move(group)`, which uses `slot`, is over: one communication of the group, after
  // what it has queued. On one rank it is a kernel.
  template <class Frame, class Move>
  void communicate(Frame& frame, const Move& move, const slot_type& slot, where at) {
    auto& stream = frame.engine().compute();
    if constexpr (!moves_rows_by_kernels<Frame>)
      if (shape_.ranks == 1) return frame.run([move] { move(alone{}); });
    if constexpr (can_start_composite<Group, Move> && requires { stream.immediate(); })
      if (!stream.immediate()) return start(frame, move, slot, at);
    frame.run_on_host([&] { move(group_); });
  }
  template <class Frame, class Move>
  void start(Frame& frame, const Move& move, const slot_type& slot, where at) {
    auto& stream = frame.engine().compute();
    const start_order how = start_order(after(stream.record(), at)).keeping(moves_);
    if constexpr (prepared_before<Move, Group>) move.prepare(group_, how);
    pending under_way = group_.start_composite(operation::exchange, move, how);
    heap_->used_until(under_way.event(), slot);
    std::move(under_way).then(stream, at);
  }

  [[nodiscard]] view<T, 2> rows_in(const slot_type& slot) const {
    return {reinterpret_cast<T*>(slot.local()), {shape_.capacity, shape_.hidden}};
  }

  Group group_;
  Heap* heap_;
  expert_shape shape_;
  std::size_t first_layer_ = 0;
  bool sends_ = sends_to_peers(group_) && shape_.ranks > 1;  // rows, or will where it is rehearsed
  bool unread_ = false;
  bool named_ = false;  // by the step or pass that runs
  participation part_ = participation::unasked;
  std::shared_ptr<moves_type> moves_;  // a communication that is under way keeps it
};

template <class Run, class Group>
expert_exchange(Run&, const Group&, expert_settings)
    -> expert_exchange<float, typename group_with_kit<Group, typename Run::engine_type::kit_type>::type>;

}  // namespace belay::inline BELAY_ABI
