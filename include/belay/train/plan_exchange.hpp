// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The plans of all ranks, on all ranks: each has rehearsed itself alone.
//
//   belay::plan all(belay::exchanged_plans(mesh.control(), own));
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "belay/comm/collective.hpp"
#include "belay/comm/communicator.hpp"
#include "belay/comm/reduction.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/tier.hpp"
#include "belay/train/plan.hpp"

namespace belay::inline BELAY_ABI {

/// A plan as words: the number of items; of each its tier, bytes, capacity, where the bytes of a file are, and its
/// purpose with its length.
[[nodiscard]] inline std::vector<std::uint64_t> words_of(const rank_plan& plan) {
  std::vector<std::uint64_t> words{plan.items().size()};
  for (const plan_item& item : plan.items()) {
    words.insert(words.end(), {static_cast<std::uint64_t>(item.where_it_is), item.bytes, item.capacity,
                               static_cast<std::uint64_t>(item.of_file), std::uint64_t{item.purpose.size()}});
    for (char letter : item.purpose) words.push_back(static_cast<unsigned char>(letter));
  }
  return words;
}
/// The plan that `words` begin with.
[[nodiscard]] inline rank_plan plan_of(std::span<const std::uint64_t> words) {
  rank_plan plan;
  std::size_t next = 1;
  for (std::uint64_t item = 0; item < words[0]; ++item) {
    const auto head = words.subspan(next, 5);
    std::string purpose;
    for (std::uint64_t letter : words.subspan(next + 5, head[4])) purpose += static_cast<char>(letter);
    plan.add({static_cast<tier>(head[0]), std::move(purpose), head[1], head[2], static_cast<file_bytes>(head[3])});
    next += 5 + head[4];
  }
  return plan;
}

/// Every rank's plan, in rank order. Collective over the group.
template <communicator Group>
requires can_all_gather<Group, std::uint64_t>
[[nodiscard]] std::vector<rank_plan> exchanged_plans(const Group& group, const rank_plan& own, where at) {
  std::vector<std::uint64_t> mine = words_of(own);
  std::uint64_t longest[1] = {mine.size()};
  group.all_reduce(std::span<std::uint64_t>(longest), maximum, at);
  mine.resize(longest[0]);
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(std::span<const std::uint64_t>(mine), std::span<std::uint64_t>(all), at);
  std::vector<rank_plan> plans;
  for (std::size_t first = 0; first < all.size(); first += mine.size())
    plans.push_back(plan_of(std::span<const std::uint64_t>(all).subspan(first, mine.size())));
  return plans;
}

}  // namespace belay::inline BELAY_ABI
