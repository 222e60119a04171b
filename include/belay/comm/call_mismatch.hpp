// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that met in one operation and call different things: which of them are culprits, and the message
// of the error on all of them. The same on all backends.
// IWYU pragma: private, include "belay/backend/host.hpp"
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/call_arguments.hpp"
#include "belay/comm/ranks_text.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// What one rank called, and where: "all_reduce of 12 x F32 (sum)", "train.cpp:88".
struct rank_call {
  int rank = 0;  // of the world
  std::string text;
  std::string site;
};

/// `there`: the call site of the first culprit, where not all ranks are culprits.
struct mismatch_report {
  std::vector<int> culprits;  // ranks of the world
  std::string message, there;
};

/// Of `size` ranks of a group: `alike(a, b)` compares the calls of two, `call(q)` describes one. The ranks whose call
/// fewer others share than the most common one are culprits; between equals all are.
template <class Alike, class Call>
[[nodiscard]] mismatch_report difference_among(int size, Alike alike, Call call) {
  const auto like = [&](int which) {
    int count = 0;
    for (int q = 0; q < size; ++q) count += alike(q, which);
    return count;
  };
  int most = 0;
  for (int q = 0; q < size; ++q) most = std::max(most, like(q));
  mismatch_report out;
  std::vector<std::pair<std::string, std::vector<int>>> calls;  // equal ones are named once
  for (int q = 0; q < size; ++q) {
    const rank_call one = call(q);
    const std::string text = one.text + " at " + one.site;
    const auto known = std::find_if(calls.begin(), calls.end(), [&](const auto& each) { return each.first == text; });
    if (known == calls.end())
      calls.push_back({text, {one.rank}});
    else
      known->second.push_back(one.rank);
    const bool fewer = like(q) < most;
    if (fewer || 2 * most <= size) out.culprits.push_back(one.rank);
    if (fewer && out.there.empty()) out.there = one.site;
  }
  for (const auto& [text, ranks] : calls) {
    out.message +=
        (out.message.empty() ? "" : ", ") + ranks_text(ranks) + (ranks.size() == 1 ? " calls " : " call ") + text;
  }
  return out;
}

/// One call of all ranks of a group, as a backend gives it to comparisons. `send_counts_of(q)` and
/// `receive_counts_of(q)` are the count vectors of rank q, `call_text(q)` and `site_of(q)` what it calls and where;
/// `refuse(report)` aborts the world and throws.
template <class Calls>
concept exchanged_calls = requires(Calls& calls, int q, mismatch_report report) {
  { calls.size() } -> std::convertible_to<int>;
  { calls.world_rank(q) } -> std::convertible_to<int>;
  { calls.send_counts_of(q) } -> std::convertible_to<std::span<const std::size_t>>;
  { calls.receive_counts_of(q) } -> std::convertible_to<std::span<const std::size_t>>;
  { calls.call_text(q) } -> std::convertible_to<std::string>;
  { calls.site_of(q) } -> std::convertible_to<std::string>;
  calls.refuse(report);
};

/// Refuses the call unless every rank is `alike` the first; `text(q)` says what rank q called.
template <exchanged_calls Calls, class Alike, class Text>
void expect_alike(Calls& calls, Alike alike, Text text) {
  bool same = true;
  for (int q = 1; q < calls.size(); ++q) same = same && alike(0, q);
  if (same) return;
  const auto call = [&](int q) { return rank_call{calls.world_rank(q), text(q), calls.site_of(q)}; };
  calls.refuse(difference_among(calls.size(), alike, call));
}

/// Vectors of counts that differ may still have the same hash: where every rank gives the whole division of a buffer,
/// the vectors themselves are compared.
template <exchanged_calls Calls>
void expect_same_counts(Calls& calls) {
  const auto first_difference = [&](int a, int b) {
    const auto ours = calls.send_counts_of(a), theirs = calls.send_counts_of(b);
    return std::mismatch(ours.begin(), ours.end(), theirs.begin()).first - ours.begin();
  };
  const auto alike = [&](int a, int b) { return first_difference(a, b) == calls.size(); };
  expect_alike(calls, alike, [&](int q) {
    std::ptrdiff_t place = calls.size();
    for (int other = 0; other < calls.size(); ++other) place = std::min(place, first_difference(0, other));
    return calls.call_text(q) + ", " + std::to_string(calls.send_counts_of(q)[static_cast<std::size_t>(place)]) +
           " of them for rank " + std::to_string(calls.world_rank(static_cast<int>(place)));
  });
}

/// What i sends to j must be what j expects of i. Every rank compares all pairs, so that all come to the same result
/// before anything is written: the ranks with the most pairs that do not match are culprits.
template <exchanged_calls Calls>
void expect_equal_pairs(Calls& calls) {
  const auto sent = [&](int from, int to) { return calls.send_counts_of(from)[static_cast<std::size_t>(to)]; };
  const auto expected = [&](int from, int to) { return calls.receive_counts_of(to)[static_cast<std::size_t>(from)]; };
  const std::optional<unequal_pairs> found = find_unequal_pairs(calls.size(), sent, expected);
  if (!found) return;
  const auto [ranks, from, to] = *found;
  mismatch_report report;
  for (int rank : ranks) report.culprits.push_back(calls.world_rank(rank));
  report.there = calls.site_of(ranks.front());
  report.message = "rank " + std::to_string(calls.world_rank(from)) + " sends " + std::to_string(sent(from, to)) +
                   " elements to rank " + std::to_string(calls.world_rank(to)) + " at " + calls.site_of(from) +
                   ", which expects " + std::to_string(expected(from, to)) + " at " + calls.site_of(to);
  calls.refuse(report);
}

}  // namespace belay::inline BELAY_ABI
