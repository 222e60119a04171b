// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// In which order a step gathers its layers, and in which the passes of the other phases do. A rehearsal notes it; the
// run follows it, and never changes it: what comes out of order costs one gather that nothing has started early, and
// is counted. And in which order a step, or pass, has gathered the layers of each group of ranks that gather together:
// they compare it when a step ends, before anything waits for what they have gathered.
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
#include "belay/step/phase.hpp"

namespace belay::inline BELAY_ABI {

/// How often layers were gathered in the order of the plan, and otherwise.
struct gather_counts {
  std::uint64_t prefetched = 0;  // started before the layer asked
  std::uint64_t in_order = 0;    // as the plan says, but not started before
  std::uint64_t missed = 0;      // not as the plan says
  std::size_t peak_bytes = 0;    // of parameters that were whole, or on their way, at a time
};

/// The gathers of one step or pass, as numbers of layers. Immutable in a run.
using gather_order = call_order;

/// The orders that a rehearsal has noted: of a step, of a pass of evaluation and of one of a rollout.
struct gather_plan : std::array<gather_order, phase_count> {
  /// Those of the step, on the rank that was rehearsed.
  std::size_t micro_batches = 0;
};

/// The orders in which the groups of one store have gathered its layers, since `begin`.
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
