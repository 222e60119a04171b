// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What only all ranks' calls together can tell, checked before anything is written.
// IWYU pragma: private, include "belay/backend/mpi.hpp"
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "belay/backend/mpi/collectives/collective_context.hpp"
#include "belay/comm/call_arguments.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Vectors of counts that differ may still have the same hash: where every rank gives the whole division of a
/// buffer, the vectors themselves are compared.
inline void expect_same_counts(collective_context& me) {
  const auto first_difference = [&](int a, int b) {
    const auto& ours = me.of(a).send_counts;
    return std::mismatch(ours.begin(), ours.end(), me.of(b).send_counts.begin()).first - ours.begin();
  };
  const auto alike = [&](int a, int b) { return first_difference(a, b) == me.size(); };
  me.expect_alike(alike, [&](int q) {
    std::ptrdiff_t place = me.size();
    for (int other = 0; other < me.size(); ++other) place = std::min(place, first_difference(0, other));
    return me.call_text(q) + ", " + std::to_string(me.of(q).send_counts[static_cast<std::size_t>(place)]) +
           " of them for rank " + std::to_string(me.world_rank(static_cast<int>(place)));
  });
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs, so that all come to the same result.
inline void expect_equal_pairs(collective_context& me) {
  const auto sent = [&](int from, int to) { return me.of(from).send_counts[static_cast<std::size_t>(to)]; };
  const auto expected = [&](int from, int to) { return me.of(to).receive_counts[static_cast<std::size_t>(from)]; };
  const std::optional<unequal_pairs> found = find_unequal_pairs(me.size(), sent, expected);
  if (!found) return;
  const auto [ranks, from, to] = *found;
  abort_cause why;
  for (int rank : ranks) why.culprits.push_back(me.world_rank(rank));
  why.there = me.of(ranks.front()).text;
  why.message = "rank " + std::to_string(me.world_rank(from)) + " sends " + std::to_string(sent(from, to)) +
                " elements to rank " + std::to_string(me.world_rank(to)) + " at " + me.of(from).text +
                ", which expects " + std::to_string(expected(from, to)) + " at " + me.of(to).text;
  me.refuse(std::move(why));
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
