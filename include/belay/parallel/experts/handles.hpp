// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Tokens that were sent to experts are owed three times: `dispatched` owes a combine, `merged` a backward, `returning`
// a finish. Each handle is the only access to its memory and is consumed by the next call; `finish` frees the slots.
// The destructor of a lost handle does not communicate: its slots stay leased and its obligation stays in the ledger,
// so the step does not commit. The next step frees the slots. `dispatched` and `returning` stay where they were made,
// as `saved` does; `merged` moves, because a layer's residue holds it until the backward.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/comm/group.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/error.hpp"
#include "belay/core/ledger.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

template <class T>
class expert_exchange;

/// The state of one dispatch, which is moved through the three handles. Internal to them.
template <class T>
struct dispatch_state {
  using slot_type = symmetric_heap<group>::heap_slot;

  expert_exchange<T>* exchange = nullptr;
  routing<compute_type_t<T>> routed;
  view<std::int32_t, 2> places;
  view<std::size_t, 1> offsets;
  view<std::size_t, 2> cuts;
  slot_type inputs;          // rows received
  slot_type outputs;         // the experts' outputs; in the backward the gradients of these
  slot_type gradients;       // leased by the backward: the experts' row gradients
  view<T, 2> packed;         // where rows are sent: those of this rank's choices, in the order of experts
  std::size_t messages = 0;  // of which dispatch
  obligation_id obligation;

  dispatch_state() = default;
  dispatch_state(dispatch_state&& other) noexcept
      : exchange(std::exchange(other.exchange, nullptr)),
        routed(other.routed),
        places(other.places),
        offsets(other.offsets),
        cuts(other.cuts),
        inputs(std::move(other.inputs)),
        outputs(std::move(other.outputs)),
        gradients(std::move(other.gradients)),
        packed(other.packed),
        messages(other.messages),
        obligation(std::exchange(other.obligation, {})) {}
  dispatch_state& operator=(dispatch_state&&) = delete;
  ~dispatch_state() = default;

  /// Places and bounds of a dispatch of `routed`, until its backward.
  template <class Frame>
  void keep_in(Frame& frame, const expert_shape& shape) {
    places = frame.template keep<std::int32_t>(extents<2>{routed.rows, shape.k});
    const view<std::size_t, 1> bounds = frame.template keep<std::size_t>(extents<1>{shape.local() * shape.ranks + 1});
    offsets = {bounds.data(), {shape.local() + 1}};
    cuts = {bounds.data() + shape.local() + 1, {shape.local(), shape.ranks - 1}};
  }

  void expect_alive(where at) const {
    if (exchange != nullptr) return;
    throw usage_error("a handle of an expert exchange was used after it was consumed, or owes nothing", at);
  }
  [[nodiscard]] std::span<const std::size_t> rows_of_experts() const noexcept { return offsets.flat(); }
};

/// Gradients at the experts: read `output_gradients`, write `row_gradients`, then `finish`. Owes a finish.
template <class T>
class [[nodiscard("belay: expert gradients under way owe a finish")]] BELAY_OBLIGATION returning final {
 public:
  BELAY_OPENS explicit returning(dispatch_state<T>&& state) noexcept : state_(std::move(state)) {}
  returning& operator=(returning&&) = delete;
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;
  BELAY_IF_DISCHARGED ~returning() {}  // not defaulted: the analysis looks at calls of a destructor

  /// [capacity, hidden], grouped like `rows`: the gradients of this rank's expert outputs, times the weights.
  BELAY_IF_OPEN [[nodiscard]] view<const T, 2> output_gradients() const {
    return state_.exchange->rows_in(state_.outputs);
  }
  /// [capacity, hidden]: the inputs of this rank's experts in the forward.
  BELAY_IF_OPEN [[nodiscard]] view<const T, 2> rows() const { return state_.exchange->rows_in(state_.inputs); }
  /// [capacity, hidden], to be written: the gradients of those inputs.
  BELAY_IF_OPEN [[nodiscard]] view<T, 2> row_gradients() const { return state_.exchange->rows_in(state_.gradients); }
  /// As in `dispatched`.
  BELAY_IF_OPEN [[nodiscard]] std::span<const std::size_t> offsets() const noexcept { return state_.rows_of_experts(); }

  /// Writes `dx` [rows, hidden], the sum over each token's experts, and frees all slots. One barrier of the group. `dx`
  /// is of the rows' type, or of that in which they are summed.
  template <class Frame, class Dx>
    requires std::same_as<Dx, T> || std::same_as<Dx, compute_type_t<T>>
  BELAY_DISCHARGES void finish(Frame& frame, view<Dx, 2> dx, where at = where::current()) && {
    state_.expect_alive(at);
    dispatch_state<T> state(std::move(state_));
    state.exchange->finish_returning(frame, state, dx, at);
  }
  template <class Frame, class... Rest>
  void finish(Frame&, Rest&&...) & {
    static_assert(!std::same_as<Frame, Frame>,
                  "belay: finish consumes its handle: write std::move(handle).finish(...)");
  }

  /// Hands a named handle on: `return std::move(handle).hand_over();`.
  BELAY_DISCHARGES BELAY_OPENS returning hand_over() && { return returning{std::move(*this)}; }

 private:
  template <class>
  friend class handle_store;
  BELAY_OPENS returning(returning&& other) noexcept : state_(std::move(other.state_)) {}

  dispatch_state<T> state_;
};

/// Combined tokens. Owes a backward, unless the frame was forward-only: then it owes nothing and may be dropped.
template <class T>
class [[nodiscard("belay: combined tokens owe a backward")]] BELAY_OBLIGATION merged {
 public:
  BELAY_OPENS explicit merged(dispatch_state<T>&& state) noexcept : state_(std::move(state)) {}
  BELAY_OPENS merged(merged&& other) noexcept : state_(std::move(other.state_)) {}
  merged& operator=(merged&&) = delete;
  BELAY_IF_DISCHARGED ~merged() {}

  /// Sends `dy` [rows, hidden] times each weight to the experts, and writes `dweights` [rows, k], the gradients of the
  /// weights. It reuses the memory of the experts' outputs. One barrier of the group. `dy` is of the rows' type, or of
  /// that in which they are summed: it is rounded when it has its weight.
  template <class Frame>
  BELAY_DISCHARGES BELAY_OPENS returning<T> backward(Frame& frame, view<const T, 2> dy,
                                                     view<compute_type_t<T>, 2> dweights,
                                                     where at = where::current()) && {
    state_.expect_alive(at);
    dispatch_state<T> state(std::move(state_));
    state.exchange->backward(frame, state, dy, dweights, at);
    return returning<T>{std::move(state)};
  }
  template <class Frame>
    requires(!std::same_as<T, compute_type_t<T>>)
  BELAY_DISCHARGES BELAY_OPENS returning<T> backward(Frame& frame, view<const compute_type_t<T>, 2> dy,
                                                     view<compute_type_t<T>, 2> dweights,
                                                     where at = where::current()) && {
    state_.expect_alive(at);
    dispatch_state<T> state(std::move(state_));
    state.exchange->backward(frame, state, dy, dweights, at);
    return returning<T>{std::move(state)};
  }
  template <class Frame, class... Rest>
  void backward(Frame&, Rest&&...) & {
    static_assert(!std::same_as<Frame, Frame>,
                  "belay: the backward consumes its handle: write std::move(handle).backward(...)");
  }

  /// Ends the obligation without a backward and frees the slots. Every rank of the group does the same. `why` is for
  /// the reader of the code.
  template <class Frame>
  BELAY_DISCHARGES void discard(Frame& frame, const char* why, where at = where::current()) && {
    static_cast<void>(why);
    if (state_.exchange == nullptr) return;
    dispatch_state<T> state(std::move(state_));
    state.exchange->abandon_dispatch(frame, state, at);
  }

  /// Its layer's activations were offloaded and have come back (step/offloaded_activations.hpp).
  void relocate(const auto& to) {
    to(state_.routed);
    to(state_.places);
    to(state_.offsets);
    to(state_.cuts);
    to(state_.packed);
  }

  /// Hands a named handle on: `return std::move(handle).hand_over();`.
  BELAY_DISCHARGES BELAY_OPENS merged hand_over() && { return merged{std::move(*this)}; }

 private:
  dispatch_state<T> state_;
};

/// Tokens at their experts: read `rows`, write `outputs`, then `combine`. Owes a combine.
template <class T>
class [[nodiscard("belay: dispatched tokens owe a combine")]] BELAY_OBLIGATION dispatched final {
 public:
  BELAY_OPENS explicit dispatched(dispatch_state<T>&& state) noexcept : state_(std::move(state)) {}
  dispatched& operator=(dispatched&&) = delete;
  static void* operator new(std::size_t) = delete;
  static void* operator new[](std::size_t) = delete;
  BELAY_IF_DISCHARGED ~dispatched() {}

  /// [capacity, hidden]: the rows that this rank's experts have received, grouped by expert. Valid until `finish`.
  BELAY_IF_OPEN [[nodiscard]] view<const T, 2> rows() const { return state_.exchange->rows_in(state_.inputs); }
  /// [capacity, hidden]: to be written, for each received row. Not valid after the combine.
  BELAY_IF_OPEN [[nodiscard]] view<T, 2> outputs() const { return state_.exchange->rows_in(state_.outputs); }
  /// [local experts + 1]: rows of local expert i are [offsets[i], offsets[i + 1]). To be read inside of `frame.run`
  /// only; valid as long as the invocation.
  BELAY_IF_OPEN [[nodiscard]] std::span<const std::size_t> offsets() const noexcept { return state_.rows_of_experts(); }

  /// Writes `y` [rows, hidden]: the outputs of each token's experts times its weights, summed in the order of the
  /// choices. One barrier of the group. In a forward-only frame the slots are free afterwards. `y` is of the rows'
  /// type, or of that in which they are summed.
  template <class Frame, class Y>
    requires std::same_as<Y, T> || std::same_as<Y, compute_type_t<T>>
  BELAY_DISCHARGES BELAY_OPENS merged<T> combine(Frame& frame, view<Y, 2> y, where at = where::current()) && {
    return std::move(*this).combine(frame, y, {}, at);
  }
  /// Adds `beside` [rows, hidden], what went around the experts, to each sum: a residual connection then needs no pass
  /// of its own. It is other memory than `y`.
  template <class Frame, class Y>
    requires std::same_as<Y, T> || std::same_as<Y, compute_type_t<T>>
  BELAY_DISCHARGES BELAY_OPENS merged<T> combine(Frame& frame, view<Y, 2> y,
                                                 view<const std::type_identity_t<Y>, 2> beside,
                                                 where at = where::current()) && {
    state_.expect_alive(at);
    dispatch_state<T> state(std::move(state_));
    state.exchange->combine(frame, state, y, beside, at);
    return merged<T>{std::move(state)};
  }
  template <class Frame, class... Rest>
  void combine(Frame&, Rest&&...) & {
    static_assert(!std::same_as<Frame, Frame>,
                  "belay: combine consumes its handle: write std::move(handle).combine(...)");
  }

  /// Ends the obligation without a combine; every rank of the group does the same.
  template <class Frame>
  BELAY_DISCHARGES void discard(Frame& frame, const char* why, where at = where::current()) && {
    static_cast<void>(why);
    state_.expect_alive(at);
    dispatch_state<T> state(std::move(state_));
    state.exchange->abandon_dispatch(frame, state, at);
  }

  /// Hands a named handle on: `return std::move(handle).hand_over();`.
  BELAY_DISCHARGES BELAY_OPENS dispatched hand_over() && { return dispatched{std::move(*this)}; }

 private:
  template <class>
  friend class handle_store;
  BELAY_OPENS dispatched(dispatched&& other) noexcept : state_(std::move(other.state_)) {}

  dispatch_state<T> state_;
};

}  // namespace belay::inline BELAY_ABI
