// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Plays a table: every stage walks its list, and leaves a group of transfers when each of them has met its partner.
// The proof tests whether all stages reach their end; the timeline adds a clock to the same walk. Each action is
// visited once and each transfer met once, so that a compiler can play a table in a static_assert.
// IWYU pragma: private, include "belay/parallel/schedule.hpp"
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"
#include "belay/parallel/schedule/table.hpp"

namespace belay::inline BELAY_ABI {
namespace schedule {

/// The state of a walk, per stage. It is made once per table; `play` resets it and allocates nothing.
template <class Storage>
struct play_state {
  explicit constexpr play_state(std::size_t stages)
      : next(Storage::template each_stage<std::uint32_t>(stages)),
        unmet(Storage::template each_stage<std::uint32_t>(stages)),
        ready(Storage::template each_stage<std::uint32_t>(stages)),
        posted(Storage::template each_stage<std::array<std::uint32_t, 4>>(stages)) {}

  typename Storage::template per_stage<std::uint32_t> next;   // index of the stage's current action
  typename Storage::template per_stage<std::uint32_t> unmet;  // transfers of its group still without a partner
  typename Storage::template per_stage<std::uint32_t> ready;  // a stack of stages that can go on
  // Transfers posted so far, by payload and direction, which determine the neighbour.
  typename Storage::template per_stage<std::array<std::uint32_t, 4>> posted;
};

/// Index into `play_state::posted` of this side of a transfer, and of its partner's side.
[[nodiscard]] constexpr std::size_t own_end(const transfer& moved) noexcept {
  return 2 * static_cast<std::size_t>(moved.what) + static_cast<std::size_t>(moved.direction);
}
[[nodiscard]] constexpr std::size_t partner_end(const transfer& moved) noexcept { return own_end(moved) ^ 1U; }

/// A visitor that does nothing.
struct no_visitor {
  constexpr void compute(std::size_t, const action&) noexcept {}
  constexpr void post(std::size_t) noexcept {}
  constexpr void meet(std::size_t, std::size_t) noexcept {}
  constexpr void complete(std::size_t) noexcept {}
};

/// Walks all stages as far as possible, and returns whether every stage reached its end. The visitor is called for
/// every compute (stage, action), every group that is posted (stage), every transfer that meets its partner (stage,
/// stage) and every group that is complete (stage). Peers must be the neighbours that the payload implies; the proof
/// checks that.
template <any_table Table, class Visitor>
constexpr bool play(const Table& table, play_state<typename Table::storage>& state, Visitor& visitor) {
  const std::size_t stages = table.stages();
  std::uint32_t* const next = state.next.data();
  std::uint32_t* const unmet = state.unmet.data();
  std::uint32_t* const ready = state.ready.data();
  auto* const posted = state.posted.data();
  std::size_t waiting_to_run = 0;
  for (std::size_t stage = stages; stage-- > 0;) {
    next[stage] = 0;
    unmet[stage] = 0;
    posted[stage] = {};
    ready[waiting_to_run++] = static_cast<std::uint32_t>(stage);
  }
  std::size_t ended = 0;
  while (waiting_to_run > 0) {
    const std::size_t stage = ready[--waiting_to_run];
    const std::span<const action> list = table.actions(stage);
    const action* const actions = list.data();
    const std::size_t size = list.size();
    std::uint32_t at = next[stage];
    for (; at < size; ++at) {
      const action& now = actions[at];
      if (now.kind != action_kind::exchange) {
        visitor.compute(stage, now);
        continue;
      }
      visitor.post(stage);
      const transfer* const group = now.group.data();
      std::uint32_t missing = 0;
      for (std::size_t i = 0; i < now.transfer_count; ++i) {
        const std::size_t peer = group[i].peer;
        const std::uint32_t number = posted[stage].data()[own_end(group[i])]++;
        if (posted[peer].data()[partner_end(group[i])] <= number) {
          ++missing;
          continue;
        }
        // The partner has posted earlier and waits in that group.
        visitor.meet(stage, peer);
        if (--unmet[peer] == 0) {
          visitor.complete(peer);
          ++next[peer];
          ready[waiting_to_run++] = static_cast<std::uint32_t>(peer);
        }
      }
      unmet[stage] = missing;
      if (missing > 0) break;
      visitor.complete(stage);
    }
    next[stage] = at;
    ended += at == size;
  }
  return ended == stages;
}

}  // namespace schedule
}  // namespace belay::inline BELAY_ABI
