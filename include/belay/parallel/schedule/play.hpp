// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plays a table: every rank walks its list, and leaves a group of transfers when each of them has met its partner.
// Every edge, from a stage to the next or the one before, has its own order. The proof tests whether all ranks reach
// their end; the timeline adds a clock to the same walk. Each action is
// visited once and each transfer met once, so that a compiler can play a table in a static_assert.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// The state of a walk. It is made once per table; `play` resets it and allocates nothing.
template <class Storage>
struct play_state {
  constexpr play_state(std::size_t ranks, std::size_t stages)
      : next(Storage::template each_rank<std::uint32_t>(ranks)),
        unmet(Storage::template each_rank<std::uint32_t>(ranks)),
        ready(Storage::template each_rank<std::uint32_t>(ranks)),
        posted(Storage::template each_stage<std::array<std::uint32_t, 4>>(stages)) {}

  typename Storage::template per_rank<std::uint32_t> next;   // index of the rank's current action
  typename Storage::template per_rank<std::uint32_t> unmet;  // transfers of its group still without a partner
  typename Storage::template per_rank<std::uint32_t> ready;  // a stack of ranks that can go on
  // Transfers of each stage posted so far, by payload and direction, which determine the stage at the other end.
  typename Storage::template per_stage<std::array<std::uint32_t, 4>> posted;
};

/// Index into `play_state::posted` of this side of a transfer, and of its partner's side.
[[nodiscard]] constexpr std::size_t own_end(const transfer& moved) noexcept {
  return 2 * static_cast<std::size_t>(moved.what) + static_cast<std::size_t>(moved.direction);
}
[[nodiscard]] constexpr std::size_t partner_end(const transfer& moved) noexcept { return own_end(moved) ^ 1U; }
/// The stage at the other end of a transfer of `stage`: activations go to the next one, gradients to the one before.
/// One outside of the pipeline wraps round to a number above all stages.
[[nodiscard]] constexpr std::size_t partner_stage(const transfer& moved, std::size_t stage) noexcept {
  const bool up = (moved.direction == transfer_direction::send) == (moved.what == payload::activation);
  return up ? stage + 1 : stage - 1;
}

/// The way of one payload from a chunk of a rank to another rank, and the micro-batches in the order in which it sends
/// them. No other way has a part in that order.
struct message_edge {
  std::size_t from = 0;
  std::size_t to = 0;
  payload what = payload::activation;
  std::size_t chunk = 0;  // of the sender
  std::vector<std::size_t> sent;

  friend bool operator==(const message_edge&, const message_edge&) = default;
};

/// The edges of a table: those of activations by stage, then those of gradients. A stage and the next one on the same
/// rank have none.
template <any_table Table>
[[nodiscard]] std::vector<message_edge> edges_of(const Table& table) {
  std::vector<message_edge> edges;
  for (const payload what : {payload::activation, payload::gradient}) {
    const std::size_t first = what == payload::activation ? 0 : 1;
    for (std::size_t stage = first; stage + 1 < table.stages() + first; ++stage) {
      const std::size_t from = table.rank_of(stage), chunk = table.chunk_of(stage);
      const std::size_t to = table.rank_of(what == payload::activation ? stage + 1 : stage - 1);
      if (from == to) continue;
      message_edge& edge = edges.emplace_back(message_edge{from, to, what, chunk, {}});
      for (const action& now : table.actions(from)) {
        for (const transfer& moved : now.transfers()) {
          const bool sends = moved.direction == transfer_direction::send;
          if (sends && moved.what == what && moved.chunk == chunk) edge.sent.push_back(moved.micro_batch);
        }
      }
    }
  }
  return edges;
}

/// Queues of tensors: the transfers of a rank run one exchange after the other, as in one queue, or each edge has its
/// own queue, so that exchanges without a compute between them are under way together.
enum class message_queues : std::uint8_t { one_a_rank, one_an_edge };

/// How tensors travel. A send waits for its receive, or with `depth` d for that of the d-th tensor before on its edge:
/// so many are on their way, or lie in the receiver's memory, before they are asked for.
struct transport {
  std::size_t depth = 0;
  message_queues queues = message_queues::one_a_rank;
};

/// A visitor that does nothing.
struct no_visitor {
  constexpr void compute(std::size_t, const action&) noexcept {}
  constexpr void post(std::size_t) noexcept {}
  constexpr void post_transfer(std::size_t, std::size_t, std::size_t) noexcept {}
  constexpr void meet(std::size_t, std::size_t, std::size_t) noexcept {}
  constexpr void wake(std::size_t, std::size_t) noexcept {}
  constexpr void complete(std::size_t, std::span<const action>) noexcept {}
};

/// The exchanges of a list that are complete with that at `last`.
[[nodiscard]] constexpr std::span<const action> completed_exchanges(std::span<const action> list, std::size_t last,
                                                                    message_queues queues) {
  std::size_t first = last;
  while (queues == message_queues::one_an_edge && first > 0 && list[first - 1].is_exchange()) --first;
  return list.subspan(first, last + 1 - first);
}

/// Walks all ranks as far as possible, and returns whether every rank reached its end. The visitor is called for
/// every compute (rank, action), every group that is posted (rank), each of its transfers (rank, end, number: the
/// tensors of an end are counted), what it meets that was posted before (rank, end, number), what waited for it (rank
/// that waited, rank), and every group that is complete (rank, its exchanges: several where those of edges are under
/// way together). An end is four times the stage and `own_end`. Peers must be the ranks that the payload implies; the
/// proof checks that.
template <any_table Table, class Visitor>
constexpr bool play(const Table& table, play_state<typename Table::storage>& state, Visitor& visitor,
                    transport by = {}) {
  const std::size_t ranks = table.ranks();
  const std::size_t depth = by.depth;
  const bool joins = by.queues == message_queues::one_an_edge;
  std::uint32_t* const next = state.next.data();
  std::uint32_t* const unmet = state.unmet.data();
  std::uint32_t* const ready = state.ready.data();
  auto* const posted = state.posted.data();
  std::size_t waiting_to_run = 0;
  for (std::size_t rank = ranks; rank-- > 0;) {
    next[rank] = 0;
    unmet[rank] = 0;
    ready[waiting_to_run++] = static_cast<std::uint32_t>(rank);
  }
  for (std::size_t stage = 0; stage < table.stages(); ++stage) posted[stage] = {};
  std::size_t ended = 0;
  while (waiting_to_run > 0) {
    const std::size_t rank = ready[--waiting_to_run];
    const std::span<const action> list = table.actions(rank);
    const action* const actions = list.data();
    const std::size_t size = list.size();
    std::uint32_t at = next[rank];
    for (; at < size; ++at) {
      const action& now = actions[at];
      if (now.kind != action_kind::exchange) {
        visitor.compute(rank, now);
        continue;
      }
      if (unmet[rank] == 0) visitor.post(rank);
      const transfer* const group = now.group.data();
      std::uint32_t missing = 0;
      for (std::size_t i = 0; i < now.transfer_count; ++i) {
        const transfer& moved = group[i];
        const std::size_t peer = moved.peer;
        const std::size_t stage = table.stage(rank, moved.chunk), partner = partner_stage(moved, stage);
        const std::size_t own = own_end(moved), other = own ^ 1U;
        const std::size_t number = posted[stage].data()[own]++;
        const std::size_t theirs = posted[partner].data()[other];
        const bool sends = moved.direction == transfer_direction::send;
        visitor.post_transfer(rank, 4 * stage + own, number);
        if (theirs + (sends ? depth : 0) <= number)
          ++missing;
        else if (!sends || number >= depth)
          visitor.meet(rank, 4 * partner + other, sends ? number - depth : number);
        // At the other end waits the receive of this tensor, or the send of the `depth`-th after it.
        if (theirs <= number + (sends ? 0 : depth)) continue;
        visitor.wake(peer, rank);
        if (--unmet[peer] == 0) {
          visitor.complete(peer, completed_exchanges(table.actions(peer), next[peer], by.queues));
          ++next[peer];
          ready[waiting_to_run++] = static_cast<std::uint32_t>(peer);
        }
      }
      unmet[rank] += missing;
      if (joins && at + 1 < size && actions[at + 1].kind == action_kind::exchange) continue;
      if (unmet[rank] > 0) break;
      visitor.complete(rank, completed_exchanges(list, at, by.queues));
    }
    next[rank] = at;
    ended += at == size;
  }
  return ended == ranks;
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
