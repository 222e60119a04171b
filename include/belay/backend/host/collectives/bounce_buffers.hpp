// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Buffers that peers cannot see. Their bytes go through each rank's staging in rounds: everybody fills one half, all
// meet, everybody uses what the others filled, while the other half is filled for the next round. Or, where the kernel
// allows it and it is worth its calls, each rank has the kernel copy what it needs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "belay/backend/host/collectives/collective_context.hpp"
#include "belay/backend/host/tuning/algorithm.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// Bytes below which a round is not worth its meeting. Above them there are eight or more, so that those who fill and
/// those who use work at the same time.
inline constexpr std::size_t least_round_bytes = 32 * 1024;

/// A range of elements that one round handles.
struct round_range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Runs `length` elements a rank through staging, of which `parts` of each rank's lie in a half at once.
/// `fill(stretch, T* half)` puts part p of the stretch at `half + p * stretch.count`; `use(stretch, halves)` takes it
/// from there, where `halves(q)` is what rank q filled.
template <class T, class Fill, class Use, class Context>
void through_staging(Context me, std::size_t length, std::size_t parts, Fill fill, Use use) {
  const std::size_t room = me.endpoint->staging_room() / (parts * sizeof(T));
  const std::size_t least = least_round_bytes / (parts * sizeof(T));
  const std::size_t most = std::max<std::size_t>(std::min(room, std::max(length / 8, least)), 1);
  std::size_t turn = 0;
  for (round_range now; now.first < length; now.first += now.count, ++turn) {
    now.count = std::min(most, length - now.first);
    fill(now, reinterpret_cast<T*>(me.endpoint->staging_of(me.rank(), turn)));
    me.endpoint->round();
    use(now, [&](int q) { return reinterpret_cast<const T*>(me.endpoint->staging_of(q, turn)); });
  }
}

/// Copies into staging, by what the group has found best for the present operation; a piece of `whole_bytes`. (Around
/// the caches, peers find it in memory: the lines of a half that they have read would otherwise come back from their
/// caches to be written.)
template <class Context>
void stage_copy(Context me, void* half, const void* from, std::size_t bytes, std::size_t whole_bytes) {
  me.copies().copy_by(me.endpoint->chosen().by, half, from, bytes, whole_bytes);
}
template <class Context>
void stage_copy(Context me, void* half, const void* from, std::size_t bytes) {
  stage_copy(me, half, from, bytes, bytes);
}

/// The part of `now` that lies in a range of `count` elements.
[[nodiscard]] inline std::size_t clipped(round_range now, std::size_t count) noexcept {
  return now.first >= count ? 0 : std::min(now.count, count - now.first);
}

/// The usual way of an operation of `bytes` a rank, once all have entered; `kind` is what is special about it.
template <class Context>
[[nodiscard]] algorithm usual_way_of(Context me, std::size_t bytes, selection_input kind = {}) noexcept {
  const bool usual = me.endpoint->all_direct() && me.endpoint->forced_algorithm() == algorithm::automatic;
  if (usual) return choose_usual(bytes, me.endpoint->any_in_place());
  kind.forced = me.endpoint->forced_algorithm();
  kind.direct = me.endpoint->all_direct();
  kind.cma_possible = me.endpoint->all_copy();
  kind.in_place = me.endpoint->any_in_place();
  return choose(kind, bytes);
}

/// How an operation of `bytes` a rank is done.
template <class Context>
[[nodiscard]] variant variant_of(Context me, std::size_t bytes, selection_input kind = {}) noexcept {
  variant out = me.endpoint->chosen();
  if (out.how == algorithm::automatic) out.how = usual_way_of(me, bytes, kind);
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
