// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What is checked of a call before it meets anybody, and what of all calls together before anything is written.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "belay/backend/mpi/party.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {
namespace mpi {

/// Where a range begins in a packed buffer.
[[nodiscard]] inline std::size_t offset_of(std::span<const std::size_t> counts, int which) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + which, std::size_t{0});
}
[[nodiscard]] inline std::size_t total_of(std::span<const std::size_t> counts) noexcept {
  return offset_of(counts, static_cast<int>(counts.size()));
}

inline void check_counts(std::span<const std::size_t> counts, int ranks, const char* what, where at) {
  if (counts.size() == static_cast<std::size_t>(ranks)) return;
  throw usage_error(std::string(what) + ": " + std::to_string(counts.size()) + " counts for a group of " +
                        std::to_string(ranks) + " ranks",
                    at);
}
inline void check_length(std::size_t given, std::size_t needed, const char* what, where at) {
  if (given == needed) return;
  throw usage_error(std::string(what) + " holds " + std::to_string(given) + " elements; this call needs " +
                        std::to_string(needed),
                    at);
}
inline void check_root(int root, int ranks, const char* what, where at) {
  if (root >= 0 && root < ranks) return;
  throw usage_error(
      std::string(what) + ": root " + std::to_string(root) + " is no rank of a group of " + std::to_string(ranks), at);
}
/// Input and output may be the same memory only where the operation says so.
inline void check_overlap(const void* in, std::size_t in_bytes, const void* out, std::size_t out_bytes,
                          const void* allowed, const char* what, where at) {
  if (in_bytes == 0 || out_bytes == 0 || in == allowed) return;
  const auto* a = static_cast<const std::byte*>(in);
  const auto* b = static_cast<const std::byte*>(out);
  const std::less<const std::byte*> before;
  if (before(a, b + out_bytes) && before(b, a + in_bytes)) {
    throw usage_error(std::string(what) + ": input and output overlap other than in place", at);
  }
}

/// Vectors of counts that differ may still have the same hash: where every rank gives the whole division of a
/// buffer, the vectors themselves are compared.
inline void expect_same_counts(party& me) {
  const auto first_difference = [&](int a, int b) {
    const auto& ours = me.of(a).send_counts;
    return std::mismatch(ours.begin(), ours.end(), me.of(b).send_counts.begin()).first - ours.begin();
  };
  const auto alike = [&](int a, int b) { return first_difference(a, b) == me.size(); };
  me.expect_alike(alike, [&](int q) {
    std::ptrdiff_t place = me.size();
    for (int other = 0; other < me.size(); ++other) place = std::min(place, first_difference(0, other));
    return me.of(q).print.text() + ", " + std::to_string(me.of(q).send_counts[static_cast<std::size_t>(place)]) +
           " of them for rank " + std::to_string(me.world_rank(static_cast<int>(place)));
  });
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs.
inline void expect_matching_pairs(party& me) {
  for (int from = 0; from < me.size(); ++from) {
    for (int to = 0; to < me.size(); ++to) {
      const std::size_t sent = me.of(from).send_counts[static_cast<std::size_t>(to)];
      const std::size_t expected = me.of(to).receive_counts[static_cast<std::size_t>(from)];
      if (sent == expected) continue;
      first_cause why;
      why.culprits = {me.world_rank(from)};
      if (to != from) why.culprits.push_back(me.world_rank(to));
      why.there = me.of(from).text;
      why.message = "rank " + std::to_string(me.world_rank(from)) + " sends " + std::to_string(sent) +
                    " elements to rank " + std::to_string(me.world_rank(to)) + " at " + me.of(from).text +
                    ", which expects " + std::to_string(expected) + " at " + me.of(to).text;
      me.refuse(std::move(why));
    }
  }
}

}  // namespace mpi
}  // namespace belay::inline BELAY_ABI
