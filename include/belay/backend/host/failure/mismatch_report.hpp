// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that met and call different things: what all of them are told.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm/culprits.hpp"
#include "belay/comm/ranks_text.hpp"
#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {
namespace host {

/// What one rank called, and where: "all_reduce of 12 x F32 (sum)", "train.cpp:88".
struct rank_call {
  int rank = 0;  // of the world
  std::string text;
  std::string site;
};

/// `there`: the call site of the first who is to blame, where that is not everybody.
struct mismatch_report {
  std::vector<int> culprits;
  std::string message, there;
};

/// Of `size` ranks of a group: `alike(a, b)` compares two of them, `call(q)` tells what one called.
template <class Alike, class Call>
[[nodiscard]] mismatch_report difference_among(int size, Alike alike, Call call) {
  const culprits found = culprits_among(size, alike);
  mismatch_report out;
  std::vector<std::pair<std::string, std::vector<int>>> calls;  // equal ones are told once
  for (int q = 0; q < size; ++q) {
    const rank_call one = call(q);
    const std::string text = one.text + " at " + one.site;
    const auto known = std::find_if(calls.begin(), calls.end(), [&](const auto& each) { return each.first == text; });
    if (known == calls.end())
      calls.push_back({text, {one.rank}});
    else
      known->second.push_back(one.rank);
    if (std::find(found.ranks.begin(), found.ranks.end(), q) != found.ranks.end()) out.culprits.push_back(one.rank);
    if (q == found.odd) out.there = one.site;
  }
  for (const auto& [text, ranks] : calls) {
    out.message +=
        (out.message.empty() ? "" : ", ") + ranks_text(ranks) + (ranks.size() == 1 ? " calls " : " call ") + text;
  }
  return out;
}

}  // namespace host
}  // namespace belay::inline BELAY_ABI
