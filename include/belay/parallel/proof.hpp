// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The proof of a schedule: every micro-batch runs forward and backward on every stage, sends meet receives, the
// schedule ends although transfers are not buffered, how many chunks and bytes a rank keeps at most, and in which
// slots. One function serves the compiler (static_assert) and start-up. It looks at each action a fixed number of
// times, so that tables of practical size fit the compilers' default constexpr limits.
//
//   static constexpr auto table = belay::schedule::one_f_one_b<4, 16>();
//   static_assert(belay::proof(table).complete);
//   static_assert(belay::require_proven<table, 4>());  // at most 4 micro-batches on a stage, or a sentence why not
//   const auto found = belay::proof(belay::schedule::from_csv(text));
//   if (!found.valid()) std::puts(belay::explain(found.reason).c_str());
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/parallel/schedule/compute_lists.hpp"
#include "belay/parallel/schedule/play.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {

namespace schedule {

/// Causes come before their consequences: of several faults a proof reports the earliest class, and of that the first
/// in stage and action order.
enum class fault_kind : std::uint8_t {
  none,
  // The table is malformed.
  micro_batch_unknown,
  chunk_unknown,
  route_unknown,
  group_size,
  // A compute is missing or misplaced.
  forward_missing,
  forward_twice,
  backward_missing,
  backward_twice,
  backward_before_forward,
  backward_out_of_order,
  input_gradient_twice,
  weight_gradient_missing,
  weight_gradient_twice,
  weight_gradient_before_input_gradient,
  weight_gradient_out_of_order,
  backward_whole_and_halves,
  pair_without_backward,
  pair_of_one_micro_batch,
  // An action beside the computes is missing or misplaced.
  offload_misplaced,
  reload_misplaced,
  backward_before_reload,
  recompute_misplaced,
  compute_before_gather,
  gather_twice,
  release_before_gather,
  release_missing,
  weight_gradient_after_reduce,
  reduce_twice,
  reduce_missing,
  // Sends and receives do not pair up.
  transfer_twice,
  send_unmatched,
  receive_unmatched,
  order_mismatch,
  // A tensor is used before it has arrived or was computed.
  forward_before_receive,
  backward_before_receive,
  send_before_compute,
  // Everything else is right, and the schedule does not end.
  deadlock,
  // It runs, and a rank keeps more bytes than it has.
  memory_exceeded,
};

/// Groups of kinds, in the order in which a proof looks for them.
enum class fault_class : std::uint8_t { none, malformed, compute, beside, pairing, data, deadlock, memory };

/// The group of a kind.
[[nodiscard]] constexpr fault_class class_of(fault_kind kind) noexcept {
  if (kind == fault_kind::none) return fault_class::none;
  if (kind <= fault_kind::group_size) return fault_class::malformed;
  if (kind <= fault_kind::pair_of_one_micro_batch) return fault_class::compute;
  if (kind <= fault_kind::reduce_missing) return fault_class::beside;
  if (kind <= fault_kind::order_mismatch) return fault_class::pairing;
  if (kind <= fault_kind::send_before_compute) return fault_class::data;
  return kind == fault_kind::deadlock ? fault_class::deadlock : fault_class::memory;
}

/// The value of a number that does not apply to a fault.
inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

/// The first fault of a table. `action` is the index in the list of the rank that holds the stage, `nowhere` where
/// something is absent.
struct fault {
  /// Kind, stage, micro-batch, and place in the rank's list.
  fault_kind kind = fault_kind::none;
  std::size_t stage = nowhere;
  std::size_t micro_batch = nowhere;
  std::size_t action = nowhere;
  /// For transfers only: tensor, direction, and the stage at the other end; of a `route_unknown` the rank there.
  payload what = payload::activation;
  transfer_direction direction = transfer_direction::send;
  std::size_t peer = nowhere;
  std::size_t peer_micro_batch = nowhere;  // of an order_mismatch: what the peer sends instead
  /// For `memory_exceeded` only: the rank, the bytes that it keeps at one time, and those that it has.
  std::size_t rank = nowhere;
  std::uint64_t bytes = 0;
  std::uint64_t budget = 0;

  friend constexpr bool operator==(const fault&, const fault&) = default;
};

}  // namespace schedule

namespace schedule {
/// Of a `memory_exceeded`: "keeps 1600 bytes on rank 0, which has 450".
[[nodiscard]] BELAY_DECL std::string explain_memory(const fault& found);
}  // namespace schedule

/// The fault as one sentence; "" where there is none.
[[nodiscard]] BELAY_DECL std::string explain(const schedule::fault& found);

namespace schedule {

/// Bytes that a stage keeps for one micro-batch.
struct stage_bytes {
  std::uint64_t for_input_gradient = 0;   ///< from its forward to its input gradient
  std::uint64_t for_weight_gradient = 0;  ///< from there to its weight gradient; for no time in a whole backward
  std::uint64_t for_both = 0;             ///< from its forward to its weight gradient
};

/// Limits of memory: bytes that each stage keeps, and those that each rank has. Without entries there are none.
struct memory_limits {
  std::span<const stage_bytes> kept;      ///< of each stage
  std::span<const std::uint64_t> budget;  ///< of each rank
};

/// The most bytes that a rank keeps at one time. `of` is a table, or the lists of one.
template <class Table>
[[nodiscard]] constexpr std::uint64_t peak_bytes(const Table& of, std::size_t rank, std::span<const stage_bytes> kept) {
  std::uint64_t now = 0, peak = 0;
  for (const auto& next : of.actions(rank)) {
    if (next.kind == action_kind::exchange || next.kind >= action_kind::recompute) continue;
    const stage_bytes& bytes = kept[of.stage(rank, next.chunk)];
    if (next.kind == action_kind::offload) now -= bytes.for_input_gradient + bytes.for_both;
    if (next.kind == action_kind::forward || next.kind == action_kind::reload)
      now += bytes.for_input_gradient + bytes.for_both;
    if (next.kind == action_kind::input_gradient) now += bytes.for_weight_gradient;
    if (now > peak) peak = now;
    if (next.kind == action_kind::input_gradient || next.kind == action_kind::backward) now -= bytes.for_input_gradient;
    if (next.kind == action_kind::weight_gradient) now -= bytes.for_weight_gradient;
    if (next.kind == action_kind::weight_gradient || next.kind == action_kind::backward) now -= bytes.for_both;
  }
  return peak;
}
/// Those of all ranks.
template <class Table>
[[nodiscard]] std::vector<std::uint64_t> peak_bytes(const Table& of, std::span<const stage_bytes> kept) {
  std::vector<std::uint64_t> peaks(of.ranks());
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) peaks[rank] = peak_bytes(of, rank, kept);
  return peaks;
}

/// The result of a proof. `PerRank` is std::array for tables of fixed size, std::vector otherwise.
template <class PerRank>
struct proof_result {
  bool complete = false;       // every stage runs each micro-batch forward and backward once, in order, with its inputs
  bool matched = false;        // sends and receives pair up one to one, in the same order
  bool deadlock_free = false;  // the schedule ends although a send waits for its receive
  bool fits = true;            // no rank keeps more bytes than it has
  PerRank peak_activations{};  // per rank: most chunks between forward and (weight) gradient at one time
  std::size_t peak = 0;        // the largest of them
  PerRank peak_bytes{};        // per rank: most bytes at one time, where the proof has limits
  fault reason;                // the first fault, or fault_kind::none

  /// Whether the schedule runs, within the limits of its memory.
  [[nodiscard]] constexpr bool valid() const noexcept { return complete && matched && deadlock_free && fits; }
};

/// Computes a `proof_result`. Memory: a byte for each stage and micro-batch, and the order of the transfers.
template <any_table Table>
class prover {
 public:
  using storage = typename Table::storage;
  using peaks = typename storage::template per_rank<std::size_t>;

  /// The table and what `memory` shows outlive it. Tensors travel as `by` says. Throws usage_error where `memory` has
  /// limits, and not one for each stage and each rank.
  explicit constexpr prover(const Table& table, transport by = {}, memory_limits memory = {})
      : table_(table),
        by_(by),
        memory_(memory),
        stages_(table.stages()),
        micro_batches_(table.micro_batches()),
        done_(storage::template each_cell<std::uint8_t>(stages_, micro_batches_)),
        order_{storage::template each_cell<moved_batch>(stages_, micro_batches_),
               storage::template each_cell<moved_batch>(stages_, micro_batches_),
               storage::template each_cell<moved_batch>(stages_, micro_batches_),
               storage::template each_cell<moved_batch>(stages_, micro_batches_)},
        moved_(storage::template each_stage<std::array<std::uint32_t, 4>>(stages_)),
        next_(storage::template each_stage<std::array<std::uint32_t, 2>>(stages_)) {
    result_.peak_activations = storage::template each_rank<std::size_t>(table.ranks());
    result_.peak_bytes = result_.peak_activations;
    if (!limits_memory()) return;
    if (memory.kept.size() != stages_ || memory.budget.size() != table.ranks())
      throw usage_error("the memory of a schedule is what each stage keeps, and what each rank has", {});
  }

  /// Checks all rules; the result names the first fault.
  [[nodiscard]] constexpr proof_result<peaks> run() {
    for (std::size_t rank = 0; rank < table_.ranks(); ++rank) walk(rank);
    for (std::size_t rank = 0; has_beside_ && rank < table_.ranks(); ++rank) walk_beside(rank);
    for (std::size_t stage = 0; stage < stages_; ++stage) expect_all(stage);
    for (std::size_t stage = 0; stage + 1 < stages_; ++stage) {
      if (table_.rank_of(stage) == table_.rank_of(stage + 1)) continue;
      compare(stage, payload::activation, stage + 1);
      compare(stage + 1, payload::gradient, stage);
    }
    if (well_formed_) {
      play_state<storage> state(table_.ranks(), stages_);
      no_visitor nobody;
      result_.deadlock_free = play(table_, state, nobody, by_);
      if (!result_.deadlock_free) name_waiting(state);
    }
    if (well_formed_ && complete_ && limits_memory()) {
      for (std::size_t rank = 0; rank < table_.ranks(); ++rank) expect_to_fit(rank);
    }
    result_.complete = well_formed_ && complete_;
    result_.matched = well_formed_ && matched_;
    return result_;
  }

 private:
  struct moved_batch {
    std::uint32_t micro_batch = 0;
    std::uint32_t action = 0;
  };

  // What a stage has done for a micro-batch. Transfers have bit own_end(transfer), which is below 4.
  static constexpr std::uint8_t received_activation = 1U << 1U;
  static constexpr std::uint8_t received_gradient = 1U << 3U;
  static constexpr std::uint8_t forward_done = 1U << 4U;
  static constexpr std::uint8_t input_gradient_done = 1U << 5U;
  static constexpr std::uint8_t weight_gradient_done = 1U << 6U;
  static constexpr std::uint8_t whole_backward = 1U << 7U;
  static constexpr std::uint8_t backward_done = input_gradient_done | weight_gradient_done;

  static constexpr std::uint8_t bit(std::size_t end) { return static_cast<std::uint8_t>(1U << end); }

  constexpr void note(fault found) {
    switch (class_of(found.kind)) {
      case fault_class::malformed: well_formed_ = false; break;
      case fault_class::pairing: matched_ = false; break;
      case fault_class::compute:
      case fault_class::beside:
      case fault_class::data: complete_ = false; break;
      default: break;
    }
    const fault_class known = class_of(result_.reason.kind);
    if (known == fault_class::none || class_of(found.kind) < known) result_.reason = found;
  }

  constexpr void walk(std::size_t rank) {
    const std::span<const action> list = table_.actions(rank);
    const action* const actions = list.data();
    const std::size_t size = list.size();
    const std::size_t chunks = table_.chunks();
    std::size_t live = 0;
    std::size_t peak = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const action& now = actions[i];
      if (now.kind == action_kind::exchange) {
        walk_group(rank, now, i);
        continue;
      }
      const std::size_t batch = now.micro_batch;
      if (now.chunk >= chunks) {
        note({fault_kind::chunk_unknown, table_.stage(rank, 0), batch, i});
        continue;
      }
      const std::size_t stage = table_.stage(rank, now.chunk);
      if (batch >= micro_batches_) {
        note({fault_kind::micro_batch_unknown, stage, batch, i});
        continue;
      }
      if (is_beside(now.kind)) {
        has_beside_ = true;
        reduces_ = reduces_ || now.kind == action_kind::reduce;
        continue;
      }
      std::uint8_t* const done = done_.data() + stage * micro_batches_ + batch;
      const std::uint8_t before = *done;
      if (now.kind == action_kind::forward) {
        if (before & forward_done) {
          note({fault_kind::forward_twice, stage, batch, i});
          continue;
        }
        if (stage > 0 && !has_input(rank, before, received_activation, done - micro_batches_, stage - 1, forward_done))
          note({fault_kind::forward_before_receive, stage, batch, i});
        if (now.paired) expect_pair(actions, size, i, stage);
        *done = before | forward_done;
        ++live;
        if (live > peak) peak = live;
        continue;
      }
      const bool input = now.kind != action_kind::weight_gradient;
      const bool weight = now.kind != action_kind::input_gradient;
      if ((input && (before & input_gradient_done)) || (weight && (before & weight_gradient_done))) {
        note({kind_of_repeated(now.kind, before), stage, batch, i});
        continue;
      }
      if (!input && !(before & input_gradient_done)) {
        note({fault_kind::weight_gradient_before_input_gradient, stage, batch, i});
      } else if (!(before & forward_done)) {
        note({fault_kind::backward_before_forward, stage, batch, i});
      } else if (weight) {
        --live;
      }
      std::uint32_t* const next = next_.data()[stage].data();  // the lowest micro-batches that may come next
      if (input && batch < next[0]) note({fault_kind::backward_out_of_order, stage, batch, i});
      if (!input && batch < next[1]) note({fault_kind::weight_gradient_out_of_order, stage, batch, i});
      if (input && stage + 1 < stages_ &&
          !has_input(rank, before, received_gradient, done + micro_batches_, stage + 1, input_gradient_done)) {
        note({fault_kind::backward_before_receive, stage, batch, i});
      }
      if (input) next[0] = static_cast<std::uint32_t>(batch + 1);
      if (weight) next[1] = static_cast<std::uint32_t>(batch + 1);
      *done = static_cast<std::uint8_t>(before | (input ? input_gradient_done : 0) |
                                        (weight ? weight_gradient_done : 0) | (input && weight ? whole_backward : 0));
    }
    result_.peak_activations.data()[rank] = peak;
    if (peak > result_.peak) result_.peak = peak;
  }

  // Actions beside the computes, in a table that has some.
  constexpr void walk_beside(std::size_t rank) {
    constexpr std::uint8_t offloaded = 1, reloaded = 2, recomputed = 4, ran_forward = 8, ran_backward = 16;
    struct chunk_state {
      bool gathered = false;      // now
      bool was_gathered = false;  // at any time
      bool reduced = false;
      std::size_t bare = 0;  // 1 + index of its first compute before a gather
    };
    const std::size_t chunks = table_.chunks();
    const scratch_array<chunk_state> states(chunks);
    const scratch_array<std::uint8_t> cells(chunks * micro_batches_);
    const std::span<const action> list = table_.actions(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const action& now = list[i];
      if (now.is_exchange() || now.chunk >= chunks || now.micro_batch >= micro_batches_) continue;
      const std::size_t stage = table_.stage(rank, now.chunk);
      chunk_state& own = states[now.chunk];
      std::uint8_t& did = cells[now.chunk * micro_batches_ + now.micro_batch];
      const auto expect = [&](bool right, fault_kind kind) {
        if (!right) note({kind, stage, is_of_chunk(now.kind) ? nowhere : now.micro_batch, i});
      };
      const bool lives = (did & ran_forward) && !(did & ran_backward);
      const bool is_there = !(did & offloaded) || (did & reloaded);
      switch (now.kind) {
        case action_kind::offload:
          expect(lives && !(did & offloaded), fault_kind::offload_misplaced);
          did |= offloaded;
          continue;
        case action_kind::reload:
          expect(lives && !is_there, fault_kind::reload_misplaced);
          did |= reloaded;
          continue;
        case action_kind::gather:
          expect(!own.gathered, fault_kind::gather_twice);
          if (own.bare > 0 && !own.was_gathered)
            note({fault_kind::compute_before_gather, stage, list[own.bare - 1].micro_batch, own.bare - 1});
          own.gathered = own.was_gathered = true;
          continue;
        case action_kind::release:
          expect(own.gathered, fault_kind::release_before_gather);
          own.gathered = false;
          continue;
        case action_kind::reduce:
          expect(!own.reduced, fault_kind::reduce_twice);
          own.reduced = true;
          continue;
        case action_kind::recompute:
          expect(lives && is_there && !(did & recomputed), fault_kind::recompute_misplaced);
          did |= recomputed;
          break;
        case action_kind::forward: did |= ran_forward; break;
        default:
          if (now.kind != action_kind::input_gradient) expect(!own.reduced, fault_kind::weight_gradient_after_reduce);
          if (now.kind == action_kind::weight_gradient) continue;  // takes no parameters, nor what was offloaded
          expect(is_there, fault_kind::backward_before_reload);
          did |= ran_backward;
      }
      if (!own.gathered) {
        expect(!own.was_gathered, fault_kind::compute_before_gather);
        if (own.bare == 0) own.bare = i + 1;
      }
    }
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      const std::size_t stage = table_.stage(rank, chunk);
      if (states[chunk].gathered) note({fault_kind::release_missing, stage});
      if (reduces_ && !states[chunk].reduced) note({fault_kind::reduce_missing, stage});
    }
  }

  // A pair has a backward directly after its forward, whose inputs do not come from that forward.
  constexpr void expect_pair(const action* actions, std::size_t size, std::size_t index, std::size_t stage) {
    const action& forward = actions[index];
    const action& beside = actions[index + 1 < size ? index + 1 : index];  // itself: there is none
    if (beside.kind != action_kind::backward && beside.kind != action_kind::input_gradient) {
      note({fault_kind::pair_without_backward, stage, forward.micro_batch, index});
    } else if (beside.chunk == forward.chunk && beside.micro_batch == forward.micro_batch) {
      note({fault_kind::pair_of_one_micro_batch, stage, forward.micro_batch, index});
    }
  }

  // Of a backward or a half that was run before, as one or in halves.
  [[nodiscard]] static constexpr fault_kind kind_of_repeated(action_kind now, std::uint8_t before) {
    const bool was_whole = (before & whole_backward) != 0, is_whole = now == action_kind::backward;
    if (was_whole != is_whole) return fault_kind::backward_whole_and_halves;
    return is_whole                             ? fault_kind::backward_twice
           : now == action_kind::input_gradient ? fault_kind::input_gradient_twice
                                                : fault_kind::weight_gradient_twice;
  }

  // Whether a compute has what it takes: received, or made by the neighbouring stage, where the rank has that too.
  [[nodiscard]] constexpr bool has_input(std::size_t rank, std::uint8_t own, std::uint8_t received,
                                         const std::uint8_t* neighbour, std::size_t neighbour_stage,
                                         std::uint8_t made) const {
    return (own & received) != 0 || (table_.rank_of(neighbour_stage) == rank && (*neighbour & made) != 0);
  }

  constexpr void expect_all(std::size_t stage) {
    const std::uint8_t* const done = done_.data() + stage * micro_batches_;
    for (std::size_t batch = 0; batch < micro_batches_; ++batch) {
      const std::uint8_t did = done[batch];
      if ((did & (forward_done | backward_done)) == (forward_done | backward_done)) continue;
      note({!(did & forward_done)                          ? fault_kind::forward_missing
            : (did & backward_done) == input_gradient_done ? fault_kind::weight_gradient_missing
                                                           : fault_kind::backward_missing,
            stage, batch, nowhere});
    }
  }

  [[nodiscard]] constexpr bool limits_memory() const { return !memory_.kept.empty() || !memory_.budget.empty(); }

  constexpr void expect_to_fit(std::size_t rank) {
    const std::uint64_t bytes = schedule::peak_bytes(table_, rank, memory_.kept);
    result_.peak_bytes.data()[rank] = static_cast<std::size_t>(bytes);
    if (bytes <= memory_.budget[rank]) return;
    result_.fits = false;
    fault found{fault_kind::memory_exceeded};
    found.rank = rank;
    found.bytes = bytes;
    found.budget = memory_.budget[rank];
    note(found);
  }

  constexpr void walk_group(std::size_t rank, const action& now, std::size_t index) {
    if (now.transfer_count == 0 || now.transfer_count > action::most_transfers) {
      note({fault_kind::group_size, table_.stage(rank, 0), nowhere, index});
      return;
    }
    const transfer* const group = now.group.data();
    for (std::size_t i = 0; i < now.transfer_count; ++i) {
      const transfer& moved = group[i];
      const std::size_t batch = moved.micro_batch;
      if (moved.chunk >= table_.chunks()) {
        note({fault_kind::chunk_unknown, table_.stage(rank, 0), batch, index});
        continue;
      }
      const std::size_t stage = table_.stage(rank, moved.chunk);
      const std::size_t partner = partner_stage(moved, stage);
      const std::size_t end = own_end(moved);
      std::uint8_t* const done = done_.data() + stage * micro_batches_ + batch;
      fault_kind wrong = fault_kind::none;
      if (batch >= micro_batches_) {
        wrong = fault_kind::micro_batch_unknown;
      } else if (partner >= stages_ || moved.peer == rank || moved.peer != table_.rank_of(partner)) {
        wrong = fault_kind::route_unknown;
      } else if (*done & bit(end)) {
        wrong = fault_kind::transfer_twice;
      }
      if (wrong != fault_kind::none) {
        note({wrong, stage, batch, index, moved.what, moved.direction,
              wrong == fault_kind::transfer_twice ? partner : moved.peer});
        continue;
      }
      const bool sends = moved.direction == transfer_direction::send;
      if (sends && !(*done & (moved.what == payload::activation ? forward_done : input_gradient_done))) {
        note({fault_kind::send_before_compute, stage, batch, index, moved.what, moved.direction, partner});
      }
      *done |= bit(end);
      order_[end].data()[stage * micro_batches_ + moved_.data()[stage].data()[end]++] = {
          moved.micro_batch, static_cast<std::uint32_t>(index)};
    }
  }

  // The k-th send of a kind from one stage to another is the k-th receive there.
  constexpr void compare(std::size_t sender, payload what, std::size_t receiver) {
    const std::size_t out = 2 * static_cast<std::size_t>(what);
    const std::size_t in = out + 1;
    const std::size_t sent = moved_[sender].data()[out];
    const std::size_t received = moved_[receiver].data()[in];
    const moved_batch* const sends = order_[out].data() + sender * micro_batches_;
    const moved_batch* const receives = order_[in].data() + receiver * micro_batches_;
    for (std::size_t k = 0; k < sent || k < received; ++k) {
      if (k < sent && k < received && sends[k].micro_batch == receives[k].micro_batch) continue;
      if (k < sent && !(done_[receiver * micro_batches_ + sends[k].micro_batch] & bit(in))) {
        note({fault_kind::send_unmatched, sender, sends[k].micro_batch, sends[k].action, what, transfer_direction::send,
              receiver});
      } else if (k < received && !(done_[sender * micro_batches_ + receives[k].micro_batch] & bit(out))) {
        note({fault_kind::receive_unmatched, receiver, receives[k].micro_batch, receives[k].action, what,
              transfer_direction::receive, sender});
      } else if (k < sent && k < received) {
        note({fault_kind::order_mismatch, receiver, receives[k].micro_batch, receives[k].action, what,
              transfer_direction::receive, sender, sends[k].micro_batch});
      }
      return;
    }
  }

  // Reports the first rank that is blocked, and the first of its transfers without a partner.
  constexpr void name_waiting(const play_state<storage>& state) {
    for (std::size_t rank = 0; rank < table_.ranks(); ++rank) {
      const std::span<const action> list = table_.actions(rank);
      const std::size_t at = state.next[rank];
      if (at >= list.size()) continue;
      for (const transfer& moved : list[at].transfers()) {
        const std::size_t stage = table_.stage(rank, moved.chunk), partner = partner_stage(moved, stage);
        const std::size_t room = moved.direction == transfer_direction::send ? by_.depth : 0;
        if (state.posted[stage][own_end(moved)] <= state.posted[partner][partner_end(moved)] + room) continue;
        note({fault_kind::deadlock, stage, moved.micro_batch, at, moved.what, moved.direction, partner});
        return;
      }
    }
  }

  const Table& table_;
  transport by_;
  memory_limits memory_;
  std::size_t stages_;
  std::size_t micro_batches_;
  bool well_formed_ = true;
  bool complete_ = true;
  bool matched_ = true;
  bool has_beside_ = false;
  bool reduces_ = false;
  typename storage::template per_cell<std::uint8_t> done_;
  std::array<typename storage::template per_cell<moved_batch>, 4> order_;  // by end: what was moved, in order
  typename storage::template per_stage<std::array<std::uint32_t, 4>> moved_;
  typename storage::template per_stage<std::array<std::uint32_t, 2>> next_;  // input and weight gradient that may come
  proof_result<peaks> result_;
};

/// A part of what a stage keeps of a micro-batch: what its input gradient alone takes, what its weight gradient takes
/// too, and what the input gradient leaves for the weight gradient. A whole backward ends the first two, and leaves
/// nothing.
enum class kept_part : std::uint8_t { forward_to_input_gradient, forward_to_weight_gradient, between_gradients };

/// The slots in which stages keep what micro-batches leave. A part of a stage has as many as it has taken at one time,
/// and none is taken again before its last use.
template <class Storage>
class kept_slots {
 public:
  /// Those of a table; see `slots_of`.
  template <any_table Table>
  explicit constexpr kept_slots(const Table& table)
      : micro_batches_(table.micro_batches()),
        slots_{Storage::template each_cell<std::uint32_t>(table.stages(), micro_batches_),
               Storage::template each_cell<std::uint32_t>(table.stages(), micro_batches_),
               Storage::template each_cell<std::uint32_t>(table.stages(), micro_batches_)},
        counts_(Storage::template each_stage<std::array<std::uint32_t, 3>>(table.stages())) {
    // Those that were taken before and are free again lie on a stack for each part of a stage.
    auto free = slots_;
    auto unused = counts_;
    for (std::size_t rank = 0; rank < table.ranks(); ++rank) {
      const std::span<const action> list = table.actions(rank);
      const action* const actions = list.data();
      const std::size_t size = list.size();
      for (std::size_t i = 0; i < size; ++i) {
        const action& now = actions[i];
        if (!is_compute(now.kind)) continue;
        if (now.chunk >= table.chunks() || now.micro_batch >= micro_batches_) refuse();
        const std::size_t stage = table.stage(rank, now.chunk), first = stage * micro_batches_;
        std::uint32_t* const count = counts_.data()[stage].data();
        std::uint32_t* const left = unused.data()[stage].data();
        const auto take = [&](std::size_t part) {
          std::uint32_t& slot = slots_[part].data()[first + now.micro_batch];
          if (slot != 0) refuse();
          slot = left[part] > 0 ? free[part].data()[first + --left[part]] : ++count[part];
        };
        const auto leave = [&](std::size_t part) {
          const std::uint32_t slot = slots_[part].data()[first + now.micro_batch];
          if (slot == 0 || left[part] == count[part]) refuse();
          free[part].data()[first + left[part]++] = slot;
        };
        switch (now.kind) {
          case action_kind::forward: take(0), take(1); break;
          case action_kind::input_gradient: take(2), leave(0); break;
          case action_kind::weight_gradient: leave(1), leave(2); break;
          default: leave(0), leave(1); break;
        }
      }
    }
  }

  /// How many a stage has for a part: as many as micro-batches have it at one time.
  [[nodiscard]] constexpr std::size_t count(std::size_t stage, kept_part of) const noexcept {
    return counts_.data()[stage][static_cast<std::size_t>(of)];
  }
  /// The one that a micro-batch has, from 0 on; `nowhere` where it has none.
  [[nodiscard]] constexpr std::size_t slot(std::size_t stage, kept_part of, std::size_t micro_batch) const noexcept {
    const std::uint32_t found = slots_[static_cast<std::size_t>(of)].data()[stage * micro_batches_ + micro_batch];
    return found == 0 ? nowhere : found - 1;
  }

 private:
  [[noreturn]] static constexpr void refuse() {
    throw usage_error("a schedule that is not proven has no slots: it repeats or misplaces a forward or a backward",
                      {});
  }

  std::size_t micro_batches_;
  std::array<typename Storage::template per_cell<std::uint32_t>, 3> slots_;  // 1 + number, 0: none
  typename Storage::template per_stage<std::array<std::uint32_t, 3>> counts_;
};

/// The slots of a proven table. They are given in the order of each rank's row: of those that are free, the one that
/// became so last. What is offloaded keeps its slot. As what a micro-batch keeps is an interval of the row, that takes
/// no more than are needed at one time. Throws usage_error where a forward or a backward is repeated or misplaced.
template <any_table Table>
[[nodiscard]] constexpr kept_slots<typename Table::storage> slots_of(const Table& table) {
  return kept_slots<typename Table::storage>(table);
}

/// No limit.
inline constexpr std::size_t any_peak = static_cast<std::size_t>(-1);

/// Turns the first fault of a table into a compiler error. Its numbers are in the name of the type.
template <fault_kind Kind, std::size_t Stage, std::size_t MicroBatch, std::size_t Action>
struct first_fault {
  static_assert(class_of(Kind) != fault_class::malformed,
                "this schedule names a micro-batch, chunk or peer that it does not have: correct the action named "
                "in first_fault<kind, stage, micro-batch, action>");
  static_assert(class_of(Kind) != fault_class::compute,
                "this schedule forgets, repeats or misplaces a forward or a backward: every stage runs each "
                "micro-batch forward once and then backward once, backwards in the order 0, 1, 2, ...; see "
                "first_fault<kind, stage, micro-batch, action>");
  static_assert(
      class_of(Kind) != fault_class::beside,
      "this schedule forgets, repeats or misplaces an action beside its computes: offload after a forward and "
      "reload before its backward, recompute before it, gather before the computes of a chunk and release "
      "after them, reduce once after its last weight gradient; see "
      "first_fault<kind, stage, micro-batch, action>");
  static_assert(class_of(Kind) != fault_class::pairing,
                "this schedule has a send without its receive, or in another order: list sends and receives "
                "between two stages in one order; see first_fault<kind, stage, micro-batch, action>");
  static_assert(class_of(Kind) != fault_class::data,
                "this schedule uses a tensor before it is received or computed: move the exchange before the "
                "compute; see first_fault<kind, stage, micro-batch, action>");
  static_assert(class_of(Kind) != fault_class::deadlock,
                "this schedule deadlocks, because a send waits for its receive: put the transfers that cross "
                "between two stages into one exchange; see first_fault<kind, stage, micro-batch, action>");
  /// Whether nothing was found.
  static constexpr bool holds = Kind == fault_kind::none;
};

/// As `first_fault`, for the number of micro-batches that a stage may keep.
template <std::size_t Peak, std::size_t Limit>
struct peak_within {
  static_assert(Peak <= Limit,
                "this schedule keeps more micro-batches between forward and backward than the limit: raise the limit "
                "or run backwards earlier (1F1B keeps min(micro-batches, stages - stage)); see "
                "peak_within<peak, limit>");
  /// Whether the peak is within the limit.
  static constexpr bool holds = Peak <= Limit;
};

}  // namespace schedule

/// Proves a table; see `schedule::proof_result`. Linear in the number of actions. A table of fixed size can be proven
/// in a static_assert: `static_assert(belay::proof(table).complete)`. Without `by` nothing is buffered, and the
/// exchanges of a rank run one after the other: what runs so runs with any transport. With `memory` each rank fits into
/// its bytes too; throws usage_error where it has not one entry for each stage, and one for each rank.
template <schedule::any_table Table>
[[nodiscard]] constexpr auto proof(const Table& table, schedule::transport by = {},
                                   schedule::memory_limits memory = {}) {
  return schedule::prover<Table>(table, by, memory).run();
}

/// True, or a compile error with a sentence that says what to change. `Table` has static storage:
///   static constexpr auto table = belay::schedule::one_f_one_b<4, 16>();
///   static_assert(belay::require_proven<table, 4>());   // 4: no stage keeps more micro-batches
template <const auto& Table, std::size_t PeakLimit = schedule::any_peak>
[[nodiscard]] consteval bool require_proven() {
  constexpr auto result = proof(Table);
  return schedule::first_fault<result.reason.kind, result.reason.stage, result.reason.micro_batch,
                               result.reason.action>::holds &&
         schedule::peak_within<result.peak, PeakLimit>::holds;
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/proof.ipp"  // IWYU pragma: export
#endif
