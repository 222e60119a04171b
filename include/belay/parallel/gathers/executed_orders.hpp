// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In which order a step, or pass, has gathered the layers of each group of ranks that gather together: they compare it
// when a step ends, before anything waits for what they have gathered.
// IWYU pragma: private, include "belay/parallel/gathers.hpp"
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/hash.hpp"
#include "belay/core/where.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/participant.hpp"

namespace belay::inline BELAY_ABI {

template <class Group>
class executed_orders {
 public:
  /// The number of a group, which outlives this; groups of the same ranks have one.
  [[nodiscard]] std::size_t add(const Group& group) {
    const auto same = [&](const group_order& each) {
      const auto known = each.group->members(), wanted = group.members();
      return std::equal(known.begin(), known.end(), wanted.begin(), wanted.end());
    };
    const auto found = std::find_if(all_.begin(), all_.end(), same);
    const auto number = static_cast<std::size_t>(found - all_.begin());
    if (found == all_.end()) all_.push_back({&group, {}, 0});
    return number;
  }

  void begin() noexcept {
    for (group_order& each : all_) each.executed = {}, each.count = 0;
  }
  /// The ranks of group `number` have gathered `layer`.
  void note(std::size_t number, std::uint32_t layer) noexcept {
    all_[number].executed.add(layer);
    ++all_[number].count;
  }
  /// The number of gathers by group `number` since `begin`.
  [[nodiscard]] std::uint64_t count(std::size_t number) const noexcept { return all_[number].count; }

  /// Throws usage_error on all ranks of a group whose orders differ. A rank that has abandoned its step agrees with
  /// all. Collective over each group in turn.
  void expect_equal(order_of_step own, where at) {
    std::string found;
    for (const group_order& each : all_) {
      if (each.group->size() < 2) continue;
      const std::array<std::uint64_t, 1> word{own == order_of_step::executed ? each.executed.value()
                                                                             : rank_comparison::abstains};
      if (compared_.differ(*each.group, word, at) && found.empty())
        found = compared_.ranks(*each.group) +
                " have gathered layers in different orders in this step: ranks that gather together call the same "
                "layers in one order";
    }
    if (!found.empty()) throw usage_error(found, at);
  }

 private:
  struct group_order {
    const Group* group;
    fnv1a executed;
    std::uint64_t count;
  };
  std::vector<group_order> all_;
  rank_comparison compared_;
};

}  // namespace belay::inline BELAY_ABI
