// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a launch holds against its options before it runs, and whose errors a process prints.
#pragma once

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/launcher.hpp"
#include "belay/core/error.hpp"
#include "belay/device/tier_file/error.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/launched_ranks.hpp"

namespace belay::inline BELAY_ABI {

BELAY_DECL launch_under_way::launch_under_way(const launched_world_facts& world, const rehearsal_result& planned,
                                              const launch_options& options, where at)
    : world_(world), options_(&options), at_(at), planned_(planned), kept_(static_cast<std::size_t>(world.size)) {
  if (planned.memory.size() != kept_.size())
    throw usage_error(
        "a plan of " + std::to_string(planned.memory.size()) + " ranks for a world of " + std::to_string(world.size),
        at);
  const launcher_environment launcher = find_launcher();
  const bool launched = launcher.size == world.size && launcher.local_size > 0;
  ranks_here_ = launched ? launcher.local_size : world.size;
  std::vector<rank_plan> plans;
  for (std::size_t rank = 0; rank < planned_.memory.size(); ++rank) {
    planned_run one{planned_.plan.ranks()[rank], planned_.memory[rank]};
    widen_workspace(one, world_.workspace);
    plans.push_back(std::move(one.plan));
    planned_.memory[rank] = std::move(one.memory);
  }
  planned_.plan = belay::plan(std::move(plans));
  expect_fits_in(world_.devices);
}

BELAY_DECL planned_run launch_under_way::planned(int rank) const {
  const auto number = static_cast<std::size_t>(rank);
  return {planned_.plan.ranks()[number], planned_.memory[number]};
}

BELAY_DECL void launch_under_way::choose_streams(kit_streams settings) {
  const stream_choice& chosen = options_->streams;
  if (chosen.policy == stream_policy::immediate) return;
  if (chosen.policy == stream_policy::rehearsal)
    throw usage_error("a launch runs its body: belay::rehearse(world, body) rehearses it", at_);
  if (settings == kit_streams::at_once)
    throw usage_error(std::string("streams that are ") + name(chosen.policy) +
                          " need a kit that is made of stream_settings, as host_kit is",
                      at_);
  streams_.policy = chosen.policy;
  if (chosen.policy == stream_policy::queued) return;
  if (!world_.ranks_are_threads)
    throw usage_error("adversarial streams need ranks that are threads of one process: belay::host::world", at_);
  streams_.arbiter = std::make_shared<stream_arbiter>(chosen.seed, static_cast<std::size_t>(world_.size));
}

BELAY_DECL void launch_under_way::expect_fits_in(const device_room& devices) const {
  expect_fits(priced(planned_, world_.communication), *options_, ranks_here_, at_, devices);
}
BELAY_DECL void launch_under_way::expect_fits_in(const device_room& devices, std::vector<rank_plan> grown) const {
  rehearsal_result all;
  all.plan = belay::plan(std::move(grown));
  expect_fits(priced(all, world_.communication), *options_, ranks_here_, at_, devices);
}

[[gnu::cold]] BELAY_DECL bool should_report(const std::exception& error, const launcher_environment& found) {
  if (found.size == 1) return true;
  if (const auto* what = dynamic_cast<const comm_error*>(&error)) {
    if (std::string_view(found.launcher) == "belay-run") return false;
    const std::vector<int>& culprits = what->about().culprits;
    int first = 0;
    while (std::find(culprits.begin(), culprits.end(), first) != culprits.end()) ++first;
    return found.rank == first;
  }
  const auto* const tier = dynamic_cast<const tier_file_error*>(&error);
  // That no file can be made in a folder all have found in their rehearsals.
  if (tier != nullptr && (tier->about().operation != tier_file_operation::open || is_shortage(tier->about().code)))
    return true;
  const bool everybodys = dynamic_cast<const input_error*>(&error) != nullptr ||
                          dynamic_cast<const file_error*>(&error) != nullptr ||
                          dynamic_cast<const plan_refused*>(&error) != nullptr;
  return found.rank == 0 || !everybodys;
}

}  // namespace belay::inline BELAY_ABI
