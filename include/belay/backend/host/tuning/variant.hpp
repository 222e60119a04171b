// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The variants of an operation: an algorithm and a memory access. All give the same bits. Which is fastest depends on
// the machine, on the cores of its ranks and on what their caches hold, so a group tries them (see online_tuner.hpp).
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/comm/fingerprint.hpp"
#include "belay/core/config.hpp"
#include "belay/core/memory_access.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

struct variant {
  algorithm how = algorithm::automatic;  // by the static rules
  memory_access by = memory_access::automatic;

  [[nodiscard]] bool operator==(const variant&) const = default;
};

/// From this many bytes of the larger buffer on variants are tried, for buffers that peers have mapped and for others.
/// Below, caches hold what was moved last: a loop that never changes its input would teach what is wrong elsewhere.
inline constexpr std::size_t least_tried_mapped = 4 * 1024 * 1024, least_tried_unmapped = 16 * 1024;

/// The properties of a call that are known before its ranks have met.
struct call_kind {
  operation what = operation::none;
  int ranks = 1;
  bool by_vectors = false;    // a reduction by reduce_two
  bool direct = false;        // every rank has every buffer mapped
  bool cma_possible = false;  // the kernel lets ranks read each other's memory
  bool in_place = false;
};

/// The variants of a call; the first is that of the static rules.
[[nodiscard]] inline std::span<const variant> variants_of(const call_kind& call) noexcept {
  using enum memory_access;
  constexpr auto push = algorithm::push, pull = algorithm::pull, usually = algorithm::automatic;
  static constexpr variant usual_only[] = {{}};
  static constexpr variant unseen[] = {
      {}, {algorithm::staged, automatic}, {algorithm::staged, non_temporal}, {algorithm::cma, automatic}};
  static constexpr variant only_staged[] = {{}, {algorithm::staged, non_temporal}};
  static constexpr variant sums[] = {{}, {usually, temporal}, {usually, non_temporal_remote}, {usually, non_temporal}};
  static constexpr variant sums_in_place[] = {{}, {usually, temporal}};
  static constexpr variant parts[] = {{}, {usually, temporal}, {usually, prefetch}, {usually, non_temporal}};
  static constexpr variant other_sums[] = {{}, {pull, automatic}};
  static constexpr variant moves[] = {{}, {push, rep_movsb}, {push, non_temporal}, {pull, rep_movsb}};
  static constexpr variant rooted_moves[] = {{}, {usually, rep_movsb}, {usually, non_temporal}};
  static constexpr variant receipts[] = {{}, {usually, temporal}, {usually, rep_movsb}, {usually, non_temporal}};
  const bool moves_bytes = call.what != operation::make_symmetric && call.what != operation::barrier;
  if (call.ranks < 2 || !moves_bytes) return usual_only;
  const bool exchanges_in_place =
      call.in_place && (call.what == operation::all_to_all || call.what == operation::all_to_all_v);
  if (!call.direct) return call.cma_possible && !exchanges_in_place ? unseen : std::span<const variant>(only_staged);
  if (exchanges_in_place) return usual_only;
  switch (call.what) {
    case operation::all_reduce:
    case operation::reduce_scatter:
    case operation::reduce_scatter_v:
    case operation::reduce:
      if (call.by_vectors && call.in_place) return sums_in_place;
      if (call.what == operation::all_reduce) return call.by_vectors ? sums : std::span<const variant>(other_sums);
      return call.by_vectors ? parts : std::span<const variant>(usual_only);
    case operation::all_gather:
    case operation::all_gather_v:
    case operation::all_to_all:
    case operation::all_to_all_v: return moves;
    case operation::broadcast:
    case operation::gather:
    case operation::scatter: return rooted_moves;
    case operation::exchange: return receipts;
    default: return usual_only;
  }
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
