// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a stream needs to move the rows of a dispatch. It runs when the host is elsewhere, so it has no handle and no
// exchange, and is kept by the communication that uses it.
// IWYU pragma: private, include "belay/parallel/experts.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/comm/start_order.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/view.hpp"
#include "belay/core/where.hpp"
#include "belay/kernel/findings.hpp"
#include "belay/kernel/non_temporal.hpp"
#include "belay/parallel/experts/layout.hpp"
#include "belay/parallel/experts/row_kernels.hpp"
#include "belay/parallel/experts/rows.hpp"
#include "belay/parallel/experts/rows_across.hpp"
#include "belay/parallel/experts/statistics.hpp"
#include "belay/parallel/routing.hpp"

namespace belay::inline BELAY_ABI {

/// One dispatch and one of its slots, by value.
template <class T, class Heap>
struct moved_rows {
  routing<compute_type_t<T>> routed;
  view<std::int32_t, 2> places;
  view<std::size_t, 1> offsets;
  view<std::size_t, 2> cuts;
  std::size_t capacity;
  Heap* heap;
  std::size_t first_byte;          // of the slot, from the region's begin
  kernel::findings_record* found;  // of the step that names the exchange, or null
};

/// The group of a rank that is alone: nothing to call.
struct alone {};

/// Scratch of one exchange, used by one move after the other, and what its moves have found.
template <class T, class Group, class Heap>
class row_moves {
 public:
  using rows_type = moved_rows<T, Heap>;

  row_moves(const expert_shape& shape, const Group& group)
      : shape_(shape),
        mirrored_(mirrors_peers(group)),
        selections_(shape.ranks * shape.experts),
        cursor_(shape.experts),
        ends_(works_on_device<Group> ? shape.local() + 1 : 0),
        shifts_(works_on_device<Group> ? shape.experts : 0),
        gather_counts_(shape.ranks, shape.experts),
        bases_(shape.ranks) {
    if (sends_to_peers(group)) transfers_.reserve(2 * shape.experts);
  }

  expert_statistics statistics;
  row_message_store messages;  // of dispatches whose rows are sent
  std::size_t needed = 0;      // rows that a rank was to receive in one dispatch
  void note_needed(std::size_t rows) noexcept { needed = rows > needed ? rows : needed; }

  /// Every rank learns what every rank has selected, so that all come to the same decisions.
  template <class Ranks>
  void count(const Ranks& group, const rows_type& rows, where at) {
    if constexpr (checked(check_level::local)) expect_counts(rows.routed.counts, rows.routed.choices.size(), at);
    shape_.capacity = rows.capacity;
    const std::size_t first = shape_.rank * shape_.experts;
    for (std::size_t e = 0; e < shape_.experts; ++e) selections_[first + e] = rows.routed.counts[e];
    if constexpr (!std::is_same_v<Ranks, alone>)
      group.all_gather_v(std::span<std::int64_t>(selections_), gather_counts_, at);
    for (std::size_t e = 0; e < shape_.experts; ++e) {
      std::int64_t total = 0;
      for (std::size_t source = 0; source < shape_.ranks; ++source) total += selections_[source * shape_.experts + e];
      rows.routed.global_counts[e] = total;
    }
    const view<const std::int64_t, 2> all{selections_.data(), {shape_.ranks, shape_.experts}};
    const std::size_t most = rows_needed(shape_, all);
    note_needed(most);
    if (most > shape_.capacity) kernel::findings_note{rows.found, {}}.need_rows(most);
    expert_offsets(shape_, all, rows.offsets);
    if (mirrored_) expert_cuts(shape_, all, rows.cuts);
    expert_places(shape_, all, rows.routed.choices, {cursor_.data(), {cursor_.size()}}, rows.places);
  }

  /// Every rank learns what every rank has selected, where the counts are in memory of a device: the host waits for
  /// this rank's in the communication, and gathers all.
  template <class Calls, class Dispatch>
  void count_on_device(const Calls& calls, const Dispatch& sent) {
    calls.fetch(own_selections(), sent.counts.data(), shape_.experts * sizeof(std::int64_t), sent.at);
    gather_counts(calls.control(), sent);
  }
  /// Every rank learns what every rank has selected, where rows are sent: the host waits for this rank's counts before
  /// the communication, so that nobody waits for peers while the rank calls NCCL, and gathers all. From them follow the
  /// ranges of rows that are sent and received.
  template <class Ranks, class Dispatch>
  void count_to_send(const Ranks& group, const Dispatch& sent, const start_order& how) {
    group.fetch(own_selections(), sent.counts.data(), shape_.experts * sizeof(std::int64_t), how);
    gather_counts(group.control(), sent);
    row_messages& now = messages[sent.peers.dispatch];
    rows_sent(shape_, selected(), {cursor_.data(), {shape_.experts}}, {now.sent.data(), {shape_.experts}});
    rows_received_of(shape_, selected(), {now.received.data(), {shape_.ranks, shape_.local()}});
  }
  /// Copies to memory of the device what kernels need of the counts that were gathered last: offsets, shifts, and
  /// global counts. Notes the rows that would have been needed beyond the capacity.
  template <class Calls, class Dispatch>
  void place_counts(const Calls& calls, const Dispatch& sent) {
    const auto& [places, offsets, shifts, capacity, found] = sent.counted;
    const std::size_t experts = shape_.experts;
    if (needed_now_ > capacity) calls.each(1, noted_rows{{found, {}}, needed_now_});
    expert_offsets(shape_, selected(), {ends_.data(), {ends_.size()}});
    calls.place(offsets, ends_.data(), ends_.size() * sizeof(std::size_t), sent.at);
    expert_shifts(shape_, selected(), {cursor_.data(), {experts}}, {shifts_.data(), {experts}});
    calls.place(shifts, shifts_.data(), experts * sizeof(std::int32_t), sent.at);
    for (std::size_t e = 0; e < experts; ++e) {
      cursor_[e] = 0;
      for (std::size_t source = 0; source < shape_.ranks; ++source) cursor_[e] += selected()(source, e);
    }
    calls.place(sent.global_counts, cursor_.data(), experts * sizeof(std::int64_t), sent.at);
  }

  /// In a communication: this rank's packed rows go to their experts and those of others come into its slot, or, where
  /// they are to be received, all the way back. What it sends itself is copied.
  template <class Calls, class Peers>
  void send_rows(const Calls& calls, const Peers& peers, p2p::direction packed, where at) {
    const row_messages& now = messages[peers.dispatch];
    const p2p::direction slot = packed == p2p::direction::send ? p2p::direction::receive : p2p::direction::send;
    const std::size_t bytes = shape_.hidden * sizeof(T);
    const auto message = [&](p2p::direction kind, std::size_t peer, T* memory, const row_range& rows) {
      if (rows.first == rows.end) return;
      transfers_.push_back(
          {kind, static_cast<int>(peer), memory + rows.first * shape_.hidden, (rows.end - rows.first) * bytes});
    };
    transfers_.clear();
    for (std::size_t peer = 0; peer < shape_.ranks; ++peer) {
      for (std::size_t i = 0; i < shape_.local(); ++i) {
        const row_range &mine = now.sent[peer * shape_.local() + i], &theirs = now.received[peer * shape_.local() + i];
        if (peer != shape_.rank) {
          message(packed, peer, peers.packed, mine);
          message(slot, peer, peers.slot, theirs);
        } else if (mine.first < mine.end) {
          T* const packed_rows = peers.packed + mine.first * shape_.hidden;
          T* const slot_rows = peers.slot + theirs.first * shape_.hidden;
          const bool there = packed == p2p::direction::send;
          calls.copy(there ? slot_rows : packed_rows, there ? packed_rows : slot_rows, (mine.end - mine.first) * bytes,
                     at);
        }
      }
    }
    calls.exchange(transfers_, at);
  }

  /// Rows that any rank of the group has moved before are there, in the communication's order. On one rank it does
  /// nothing.
  template <class Ranks>
  void synchronize([[maybe_unused]] const Ranks& group, [[maybe_unused]] const rows_type& rows,
                   [[maybe_unused]] where at) {
    if constexpr (!std::is_same_v<Ranks, alone>) rows.heap->synchronize_in(group, at);
  }

  /// This rank's rows of `x` to their places.
  void push(const rows_type& rows, const T* x) {
    const bool large = shape_.ranks * rows.places.size() * shape_.hidden * sizeof(T) >= non_temporal_from;
    for_each_token(push_tokens<T>{slots_of_peers(rows), x, large ? 1 : 0}, rows.routed.rows);
    if (large) kernel::finish_non_temporal();
  }
  /// This rank's rows, from its mirrors to their owners' slots.
  void put_rows(const rows_type& rows) {
    if (!mirrored_ || shape_.ranks == 1) return;
    const std::size_t bytes = shape_.hidden * sizeof(T);
    for (std::size_t i = 0; i < rows.places.size(); ++i) {
      const std::int32_t place = rows.places.data()[i];
      if (place == no_place) continue;
      const auto owner = static_cast<std::size_t>(rows.routed.choices.data()[i]) / shape_.local();
      rows.heap->put_bytes(static_cast<int>(owner), rows.first_byte + static_cast<std::size_t>(place) * bytes, bytes);
    }
  }
  /// The rows of this rank's experts, to the mirrors on the ranks that own the tokens.
  void give_rows(const rows_type& rows) {
    if (!mirrored_ || shape_.ranks == 1) return;
    const std::size_t bytes = shape_.hidden * sizeof(T);
    for (std::size_t peer = 0; peer < shape_.ranks; ++peer) {
      for (std::size_t i = 0; i < shape_.local(); ++i) {
        const auto [first, end] = rows_from(peer, i, rows.offsets, rows.cuts);
        rows.heap->give_bytes(static_cast<int>(peer), rows.first_byte + first * bytes, (end - first) * bytes);
      }
    }
  }

  [[nodiscard]] peer_slots<T> slots_of_peers(const rows_type& rows) {
    for (std::size_t peer = 0; peer < shape_.ranks; ++peer)
      bases_[peer] = reinterpret_cast<T*>(rows.heap->base(static_cast<int>(peer)) + rows.first_byte);
    return {bases_.data(), rows.routed.choices.data(), rows.places.data(), shape_.k, shape_.hidden, shape_.local()};
  }

 private:
  [[nodiscard]] std::int64_t* own_selections() noexcept { return selections_.data() + shape_.rank * shape_.experts; }
  [[nodiscard]] view<const std::int64_t, 2> selected() const noexcept {
    return {selections_.data(), {shape_.ranks, shape_.experts}};
  }
  // This rank's are there. The cursor is where its rows for each expert start, until `place_counts`.
  template <class Control, class Dispatch>
  void gather_counts(const Control& control, const Dispatch& sent) {
    shape_.capacity = sent.counted.capacity;
    if constexpr (checked(check_level::local))
      expect_counts(view<const std::int64_t, 1>{own_selections(), {shape_.experts}}, sent.choices, sent.at);
    control.all_gather_v(std::span<std::int64_t>(selections_), gather_counts_, sent.at);
    expert_starts(shape_, selected(), {cursor_.data(), {shape_.experts}});
    needed_now_ = rows_needed(shape_, selected());
    note_needed(needed_now_);
  }

  expert_shape shape_;
  bool mirrored_;                         // rows are put into mirrors, and given to them
  std::vector<std::int64_t> selections_;  // [ranks, experts], of the current dispatch
  std::vector<std::int64_t> cursor_;
  std::size_t needed_now_ = 0;        // by the dispatch whose counts were gathered last
  std::vector<std::size_t> ends_;     // for a device, as are these:
  std::vector<std::int32_t> shifts_;  // [experts]
  std::vector<std::size_t> gather_counts_;
  std::vector<p2p> transfers_;  // of one exchange of rows that are sent
  std::vector<T*> bases_;       // of the slot on each rank that a kernel moves rows to or from
};

}  // namespace belay::inline BELAY_ABI
