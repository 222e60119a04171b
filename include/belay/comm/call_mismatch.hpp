// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What ranks compare once each knows every other's call: whether all call the same, and whether counts fit. All come to
// the same verdict before anything is written. The same on all backends.
// IWYU pragma: private, include "belay/belay.hpp"
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"

namespace belay::inline BELAY_ABI {

/// The call of one rank, and where it is: "all_reduce of 12 x F32 (sum)", "train.cpp:88".
struct rank_call {
  int rank = 0;  // of the world
  std::string text;
  std::string site;
};

/// Ranks whose calls differ. `there`: the call site of the first culprit, where not all ranks are culprits.
struct mismatch_report {
  std::vector<int> culprits;  // ranks of the world
  std::string message, there;
};

/// Of `size` ranks of a group: `alike(a, b)` compares the calls of two, `call(q)` describes one. The ranks whose call
/// fewer others share than the most common one are culprits; between equals all are.
[[nodiscard]] BELAY_DECL mismatch_report difference_among(int size, function_ref<bool(int, int)> alike,
                                                          function_ref<rank_call(int)> call);

/// Ranks of a group of which one sends another what it does not expect.
struct unequal_pairs {
  std::vector<int> culprits;  // the ranks with the most pairs that do not fit
  int from = 0, to = 0;       // the first such pair of the first of them
};
/// Of `ranks` ranks of which some pairs do not fit.
[[nodiscard]] BELAY_DECL unequal_pairs find_unequal_pairs(int ranks, function_ref<std::size_t(int, int)> sent,
                                                          function_ref<std::size_t(int, int)> expected);

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

/// Refuses a call that not all ranks make alike; `text(q)` says what rank q called.
template <exchanged_calls Calls>
[[gnu::cold, gnu::noinline]] void refuse_unequal(Calls& calls, function_ref<bool(int, int)> alike,
                                                 function_ref<std::string(int)> text) {
  const auto call = [&](int q) { return rank_call{calls.world_rank(q), text(q), calls.site_of(q)}; };
  calls.refuse(difference_among(calls.size(), alike, call));
}

/// Refuses the call unless every rank is `alike` the first; `text(q)` says what rank q called.
template <exchanged_calls Calls, class Alike>
void expect_alike(Calls& calls, Alike alike, function_ref<std::string(int)> text) {
  bool same = true;
  for (int q = 1; q < calls.size(); ++q) same = same && alike(0, q);
  if (!same) refuse_unequal(calls, alike, text);
}

/// Vectors of counts that differ may still have the same hash: where every rank gives the whole division of a buffer,
/// the vectors themselves are compared.
template <exchanged_calls Calls>
void expect_same_counts(Calls& calls) {
  const auto first_difference = [&](int a, int b) {
    const std::span<const std::size_t> ours = calls.send_counts_of(a);
    return static_cast<int>(std::mismatch(ours.begin(), ours.end(), calls.send_counts_of(b).begin()).first -
                            ours.begin());
  };
  const auto alike = [&](int a, int b) { return first_difference(a, b) == calls.size(); };
  expect_alike(calls, alike, [&](int q) {
    int place = calls.size();
    for (int other = 0; other < calls.size(); ++other) place = lesser_of(place, first_difference(0, other));
    return calls.call_text(q) + ", " + std::to_string(calls.send_counts_of(q)[static_cast<std::size_t>(place)]) +
           " of them for rank " + std::to_string(calls.world_rank(place));
  });
}

/// Refuses calls unless rank i sends to each rank j as many elements as j expects of i. The ranks with the most pairs
/// that do not fit are the culprits.
template <exchanged_calls Calls>
void expect_equal_pairs(Calls& calls) {
  const auto sent = [&](int from, int to) { return calls.send_counts_of(from)[static_cast<std::size_t>(to)]; };
  const auto expected = [&](int from, int to) { return calls.receive_counts_of(to)[static_cast<std::size_t>(from)]; };
  bool fits = true;
  for (int from = 0; from < calls.size(); ++from) {
    for (int to = 0; to < calls.size(); ++to) fits = fits && sent(from, to) == expected(from, to);
  }
  if (fits) return;
  const unequal_pairs found = find_unequal_pairs(calls.size(), sent, expected);
  mismatch_report report;
  for (int rank : found.culprits) report.culprits.push_back(calls.world_rank(rank));
  report.there = calls.site_of(found.culprits.front());
  report.message =
      "rank " + std::to_string(calls.world_rank(found.from)) + " sends " + std::to_string(sent(found.from, found.to)) +
      " elements to rank " + std::to_string(calls.world_rank(found.to)) + " at " + calls.site_of(found.from) +
      ", which expects " + std::to_string(expected(found.from, found.to)) + " at " + calls.site_of(found.to);
  calls.refuse(report);
}

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/comm/call_mismatch.ipp"  // IWYU pragma: export
#endif
