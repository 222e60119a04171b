// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Which ranks are the culprits of calls that do not fit together, and what all are told.
#pragma once

#include <algorithm>
#include <utility>

#include "belay/comm/call_mismatch.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/printable.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL mismatch_report difference_among(int size, function_ref<bool(int, int)> alike,
                                            function_ref<rank_call(int)> call) {
  const auto like = [&](int which) {
    int count = 0;
    for (int q = 0; q < size; ++q) count += alike(q, which);
    return count;
  };
  int most = 0;
  for (int q = 0; q < size; ++q) most = greater_of(most, like(q));
  mismatch_report out;
  std::vector<std::pair<std::string, std::vector<int>>> calls;  // each text once
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

BELAY_DECL unequal_pairs find_unequal_pairs(int ranks, function_ref<std::size_t(int, int)> sent,
                                            function_ref<std::size_t(int, int)> expected) {
  const auto unequal = [&](int who) {
    int out = 0;
    for (int q = 0; q < ranks; ++q) out += (sent(who, q) != expected(who, q)) + (sent(q, who) != expected(q, who));
    return out;
  };
  int most = 0;
  for (int q = 0; q < ranks; ++q) most = greater_of(most, unequal(q));
  unequal_pairs out;
  for (int q = 0; q < ranks; ++q) {
    if (unequal(q) == most) out.culprits.push_back(q);
  }
  const int first = out.culprits.front();
  for (int q = ranks - 1; q >= 0; --q) {
    if (sent(q, first) != expected(q, first)) {
      out.from = q;
      out.to = first;
    }
    if (sent(first, q) != expected(first, q)) {
      out.from = first;
      out.to = q;
    }
  }
  return out;
}

}  // namespace belay::inline BELAY_ABI
