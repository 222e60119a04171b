// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The part of an expert exchange that knows neither the type of its rows nor the kit that computes: its part in steps,
// its heap, who is told what, and which ranges of rows travel. It is compiled once.
//
// Rows come to experts of other ranks in one of four ways. Where all experts are here, nobody is asked. Where peers are
// addressed, kernels store into their slots, and a barrier says so. Where they are mirrored, as over MPI, the same
// kernels work on mirrors: pushed rows are put into the owners' slots, owners give rows to mirrors of who pulls them.
//
// Where rows are sent, ranks have a device each. A rank keeps the rows of its choices packed, in the order of experts.
// There, and in the owner's slot, those of one rank for one expert lie side by side, in the order of tokens: so a
// message is a range of each, nothing is packed twice, and what arrives is in its place. Counts go by the host, before
// the communication is started: each rank waits for its own, and gathers them. So both ends of a message compute its
// size, and neither sends rows for which the owner has no room.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "belay/comm/group.hpp"
#include "belay/comm/group_interface.hpp"
#include "belay/comm/p2p.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/device/stream_event.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/statistics.hpp"
#include "belay/step/participant.hpp"

namespace belay::inline BELAY_ABI {

/// How rows come to experts of other ranks and back: not at all, by addresses, by messages between slots and their
/// mirrors, or by messages between packed rows and slots.
enum class row_transport : std::uint8_t { here, addressed, mirrored, sent };

/// The order of a move: ranks agree on counts, then rows go to experts; rows go to experts; or rows come to tokens.
enum class row_direction : std::uint8_t { dispatched, to_experts, to_tokens };

/// One dispatch and one of its slots, by value: it is used when the host is elsewhere, so it has no handle.
struct moved_rows {
  /// The routing: choices [rows, k], the counts of this rank, and those of all, which a dispatch writes.
  view<const std::int32_t, 2> choices;
  const std::int64_t* counts;
  std::int64_t* global_counts;
  /// Places [rows, k], offsets [local + 1] and cuts [local, ranks - 1], which a dispatch writes; on a device shifts
  /// [experts] are where cuts would be.
  std::int32_t* places;
  std::size_t* offsets;
  std::size_t* cuts;
  /// Rows that there is room for, and the step's findings, or null.
  std::size_t capacity;
  kernel::findings_record* found;
  /// The slot: where it begins in each rank's part of the heap. Where rows are sent, the packed ones, and the number of
  /// the dispatch among those whose messages are known.
  symmetric_heap<group>* heap;
  std::size_t first_byte;
  std::byte* packed;
  std::size_t dispatch;
};

/// Ranges of rows that a rank sends and receives in one dispatch, and the other way on its way back: of its packed
/// choices by expert [experts], and of its slot by source and local expert [ranks, local].
struct row_messages {
  std::vector<row_range> sent, received;
};

/// The messages of all dispatches that are not finished. One that has ended is used again: once there are enough,
/// nothing is allocated.
class row_message_store {
 public:
  /// For a dispatch, of so many ranges each way.
  [[nodiscard]] std::size_t take(std::size_t ranges);
  void give_back(std::size_t index) noexcept { free_.push_back(index); }
  /// Ends all: what a step does when handles were lost.
  void reclaim() noexcept;
  [[nodiscard]] row_messages& operator[](std::size_t index) noexcept { return all_[index]; }

 private:
  std::vector<row_messages> all_;
  std::vector<std::size_t> free_;
};

/// The messages of ranks in the moves of one exchange, one move after the other, and the counts that they have found. A
/// communication that is under way keeps it.
class row_moves {
 public:
  /// Of an exchange whose rows are moved as `by` says, and have so many bytes.
  row_moves(const expert_shape& shape, row_transport by, std::size_t row_bytes);

  expert_statistics statistics;
  row_message_store messages;  // of dispatches whose rows are sent
  void note_needed(std::size_t rows) noexcept {
    std::size_t known = needed_.load(std::memory_order_relaxed);
    while (known < rows && !needed_.compare_exchange_weak(known, rows, std::memory_order_relaxed)) {
    }
  }
  /// Rows that a rank was to receive in one dispatch, since the last call. A move of a step that was cut off may still
  /// be under way.
  [[nodiscard]] std::size_t take_needed() noexcept { return needed_.exchange(0, std::memory_order_relaxed); }

  // On a host, in a communication; `calls` are null where all experts are here.

  /// Every rank learns what every rank has selected, so that all come to the same decisions.
  void count(const group_calls* calls, const moved_rows& rows, where at);
  /// Rows that this rank has written are in the owners' slots, or will be when peers have called the same.
  void to_experts(const group_calls* calls, const moved_rows& rows, where at);
  /// The owners' rows may be read.
  void to_tokens(const group_calls* calls, const moved_rows& rows, where at);

  // Where the compute stream is queued. A step that is cut off skips what has not begun: nobody has written what a move
  // of it reads, and peers may be in that communication already.

  /// The number of the next move, which the compute stream is to come to before the move begins.
  [[nodiscard]] std::uint64_t announce() noexcept { return ++announced_; }
  /// The compute stream has come to it. Throws usage_error where the move has begun before: a stream has forgotten an
  /// event.
  void come_to(std::uint64_t number, where at);
  /// Whether the stream has skipped it, so that its inputs are not there; asked once, when the move begins.
  [[nodiscard]] bool was_skipped(std::uint64_t number) noexcept;
  /// The part of this rank in a move that was cut off: it has selected nothing, and touches no row.
  void move_nothing(const group_calls& calls, const moved_rows& rows, row_direction direction, where at);

  // On a device.

  /// Every rank learns what every rank has selected: the host waits for this rank's counts in the communication, and
  /// gathers all; or before it, where rows are sent, so that nobody waits for peers while the rank calls NCCL.
  void count_on_device(const group_calls& calls, const moved_rows& rows, where at);
  void count_to_send(const group& ranks, const moved_rows& rows, const start_order& how);
  /// Rows that a rank was to receive of the counts that were gathered last.
  [[nodiscard]] std::size_t needed_now() const noexcept { return needed_now_; }
  /// Copies to memory of the device what kernels need of them: offsets, shifts, and global counts.
  void place_counts(const group_calls& calls, const moved_rows& rows, where at);
  /// This rank's packed rows go to their experts and those of others come into its slot, or, where packed rows are to
  /// be received, all the way back. What it sends itself is `copy(to, from, bytes)`.
  void send_rows(const group_calls& calls, const moved_rows& rows, p2p::direction packed,
                 function_ref<void(void*, const void*, std::size_t)> copy, where at);

 private:
  [[nodiscard]] view<std::int64_t, 1> own_selections() noexcept {
    return {selections_.data() + shape_.rank * shape_.experts, {shape_.experts}};
  }
  [[nodiscard]] view<const std::int64_t, 2> selected() const noexcept {
    return {selections_.data(), {shape_.ranks, shape_.experts}};
  }
  [[nodiscard]] view<std::int64_t, 1> cursor() noexcept { return {cursor_.data(), {shape_.experts}}; }
  // This rank's selections are there, of so many choices.
  template <class Ranks>
  void gather(const Ranks& ranks, std::size_t choices, where at);
  void add_counts(std::int64_t* totals) const noexcept;

  expert_shape shape_;
  row_transport by_;
  std::size_t row_bytes_;
  std::vector<std::int64_t> selections_;  // [ranks, experts], of the current dispatch
  std::vector<std::int64_t> cursor_;      // [experts]
  std::size_t needed_now_ = 0;
  std::vector<std::size_t> ends_;     // for a device, as are these:
  std::vector<std::int32_t> shifts_;  // [experts]
  std::vector<std::size_t> gather_counts_;
  std::vector<p2p> transfers_;  // of one exchange of rows that are sent
  std::atomic<std::size_t> needed_{0};
  std::uint64_t announced_ = 0;
  static constexpr std::size_t queued_moves = 256;  // more than a rank has started and not ended
  std::array<std::atomic<std::uint64_t>, queued_moves> come_to_{};
};

/// An expert exchange of whatever rows, as a participant of steps.
class exchange_core : public participant {
 public:
  exchange_core(const exchange_core&) = delete;  // handles point to it
  exchange_core& operator=(const exchange_core&) = delete;

  /// Allocates statistics for layers [first_layer, first_layer + layers), counted as `frame.layer_index()`.
  void prepare(std::size_t first_layer, std::size_t layers, std::size_t micro_batches, where at = where::current());
  /// Records in the caller's `statistics`, for layers from `first_layer` on, counted as `frame.layer_index()`. They are
  /// over memory of the device where kernels move rows: nobody clears that between steps.
  void prepare(std::size_t first_layer, expert_statistics statistics);
  /// Of a rank whose layers do not follow each other: its entry l is of `layers[l]`, one of a kind for each.
  void prepare(std::span<const std::size_t> layers, expert_statistics statistics);

  /// Begins a step: zeroes statistics, and frees slots whose handles were lost in the last step. In checked builds it
  /// is a `usage_error` if the overflow was not taken after the last dispatch; in release builds it stays until it is
  /// taken.
  void begin_step(where at = where::current());

  // A step asks its participants for these.
  void begin(const step_start&, where at) override;
  void finish(const divisor_value&, where) noexcept override;
  void abandon(where) noexcept override;
  void withdraw() noexcept override;
  /// An overflow is in the findings of the step, where the dispatch has written it.
  [[nodiscard]] ballot findings() noexcept override;
  [[nodiscard]] std::uint64_t fingerprint() const noexcept override;
  /// Room for `rows` rows and an eighth more, so that a drifting router does not replay every step.
  void make_room(std::size_t rows, where at) override;

  /// Leases come from `heap` from now on, so that one exchange can be rehearsed on one heap and run on another. No
  /// handle may be open.
  void use(symmetric_heap<belay::group>& heap) noexcept { heap_ = &heap; }

  /// Whether dispatches were made since the overflow was last taken.
  [[nodiscard]] bool overflow_unread() const noexcept { return unread_; }
  /// The capacity that dispatches have needed since the last call. The same on all ranks of the group.
  [[nodiscard]] expert_overflow take_overflow() noexcept;
  /// Rows that a rank can receive from the next dispatch on. Called with the same number on all ranks, between steps.
  void set_capacity(std::size_t rows, where at = where::current());

  [[nodiscard]] const expert_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] const belay::group& group() const noexcept { return group_; }
  [[nodiscard]] row_transport transport() const noexcept { return by_; }
  /// Experts of this rank: [first, first + count).
  [[nodiscard]] std::size_t first_local_expert() const noexcept { return shape_.rank * shape_.local(); }
  [[nodiscard]] std::size_t local_experts() const noexcept { return shape_.local(); }
  /// Of one slot. A dispatch leases two until its finish; its backward leases a third until then.
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return shape_.capacity * shape_.hidden * element_bytes_; }
  [[nodiscard]] expert_statistics& statistics() noexcept { return moves_->statistics; }
  [[nodiscard]] const expert_statistics& statistics() const noexcept { return moves_->statistics; }

 protected:
  using slot_type = symmetric_heap<belay::group>::heap_slot;

  /// Throws usage_error where experts cannot be divided among the ranks, or k of them not be chosen; and of groups
  /// whose ranks reach no memory of each other, or hold equal counts alone.
  exchange_core(const belay::group& ranks, symmetric_heap<belay::group>& heap, const expert_settings& settings,
                std::size_t element_bytes, where at);
  ~exchange_core() override = default;

  /// `ranks`. Throws usage_error where they reach no memory of each other, or hold equal counts alone.
  static const belay::group& expect_reach(const belay::group& ranks, where at);
  /// Of a run that computes on `processor`, in whose steps alone it takes part.
  void belong_to_run(computes_on processor) noexcept;
  /// Throws usage_error for a dispatch in a step that does not name the exchange, or of a routing over other experts.
  void expect_dispatch(const char* layer, std::size_t experts, std::size_t k, where at) const;

  /// The statistics' entry of a layer, by `frame.layer_index()`; beyond them where there is none.
  [[nodiscard]] std::size_t entry_of(std::size_t layer) const noexcept;
  /// A communication that begins after `ready` and keeps what it needs.
  [[nodiscard]] start_order order_after(const stream_event& ready, where at) const;

  symmetric_heap<belay::group>* heap_;
  bool unread_ = false;
  bool named_ = false;  // by the step or pass that runs
  std::shared_ptr<row_moves> moves_;  // a communication that is under way keeps it

 private:
  // In a step: it takes part, it waits for one that names it, or it is begun by `begin_step` alone.
  enum class participation : std::uint8_t { unasked, waits, takes };
  void end_part() noexcept;

  belay::group group_;
  expert_shape shape_;
  std::size_t element_bytes_;
  row_transport by_;
  std::vector<std::size_t> layers_;  // by entry of the statistics
  participation part_ = participation::unasked;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/parallel/experts/core.ipp"  // IWYU pragma: export
#endif
