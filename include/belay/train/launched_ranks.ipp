// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The course of a rank in a launch: a program links that of ranks and engines of the host, and compiles others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "belay/core/error.hpp"
#include "belay/device/kit.hpp"
#include "belay/train/launch_plan.hpp"
#include "belay/train/launched_ranks.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class Rehearsed>
void launch_rank(launch_under_way& launch, rank& self, const run_parts<Engine>& parts, body_call<Engine> body,
                 body_call<Rehearsed> rehearsed) {
  const launched_world_facts& world = launch.world();
  const where at = launch.site();
  const int number = self.unasked_rank();
  stream_settings streams = launch.streams();
  std::optional<stream_arbiter::host> turns;
  if (streams.arbiter != nullptr) turns.emplace(*streams.arbiter);
  self.meshes().add(launch.meshes());
  // Ranks with a device each measure it when they have their communicators; all see all, so that all refuse, or none.
  device_room room = world.devices;
  if (const std::optional<std::size_t> left = self.room_beside_groups(at)) {
    room.by_rank = told_by_ranks(self, *left, at);
    launch.expect_fits_in(room);
  }
  // Each rank rehearses itself; the same.
  const auto again = [&, number, rehearsed](std::uint64_t rows) {
    const rank_rehearsal<Rehearsed> kind(number, world.size, rehearsed, rows, at, world.on, world.promises,
                                         launch.options().explain_faults);
    planned_run own = kind.leased_by(number);
    widen_workspace(own, world.workspace);
    launch.expect_fits_in(room, exchanged_plans(self.control(), own.plan, at));
    return own;
  };
  streams.watch = self.watch();
  const auto own_run = std::make_shared<typename run_with<Engine>::type>(number, world.size, launch.planned(number),
                                                                         again, streams, parts);
  if constexpr (takes_products<typename Engine::kit_type>)
    own_run->engine().kit().use_products(launch.options().products);
  launch.keep(number, own_run);
  if (std::optional<device_usage> used = self.usage()) {
    used->planned = world.communication.bytes;
    const std::vector<device_usage> measured = told_by_ranks(self, *used, at);
    if (number == 0 && launch.options().measured) launch.options().measured(measured);
  }
  if (streams.arbiter != nullptr) self.use(streams.arbiter);
  try {
    body(self, *own_run);
  } catch (const comm_error&) {
    if (own_run->engine().has_copies()) own_run->engine().copies().synchronize();
    throw;
  }
  if (streams.arbiter != nullptr) self.finish();
}

}  // namespace belay::inline BELAY_ABI
