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
#include "belay/train/launched_ranks.hpp"
#include "belay/train/plan_exchange.hpp"

namespace belay::inline BELAY_ABI {

template <class Engine, class Rehearsed, class Rank>
void launch_rank(launch_under_way& launch, Rank& rank, body_call<Rank, Engine> body,
                 body_call<belay::rank, Rehearsed> rehearsed) {
  const launched_world_facts& world = launch.world();
  const where at = launch.site();
  const int number = layout_rank(rank);
  stream_settings streams = launch.streams();
  std::optional<stream_arbiter::host> turns;
  if (streams.arbiter != nullptr) turns.emplace(*streams.arbiter);
  rank.meshes().add(launch.meshes());
  // Ranks with a device each measure it when they have their communicators; all see all, so that all refuse, or none.
  device_room room = world.devices;
  if constexpr (measures_device<Rank>) {
    rank.make_recorded_groups(at);
    room.by_rank = told_by_ranks(rank, rank.available_device_memory(at), at);
    launch.expect_fits_in(room);
  }
  // Each rank rehearses itself; the same.
  const auto again = [&, number, rehearsed](std::uint64_t rows) {
    const rank_rehearsal<Rehearsed> kind(number, world.size, rehearsed, rows, at, world.on, world.promises);
    planned_run own = kind.leased_by(number);
    widen_workspace(own, world.workspace);
    launch.expect_fits_in(room, exchanged_plans(control_of(rank.world()), own.plan, at));
    return own;
  };
  if constexpr (watches_streams<Rank>) streams.watch = rank.watch();
  using run_type = run<Rank, Engine>;
  const auto self = std::make_shared<run_type>(number, world.size, launch.planned(number), again, streams,
                                               run_parts_of<Engine>(rank));
  launch.keep(number, self);
  if constexpr (tells_usage<Rank>) {
    device_usage used = rank.usage();
    used.planned = world.communication.bytes;
    const std::vector<device_usage> measured = told_by_ranks(rank, used, at);
    if (number == 0 && launch.options().measured) launch.options().measured(measured);
  }
  if constexpr (takes_arbiter<Rank>)
    if (streams.arbiter != nullptr) rank.use(streams.arbiter);
  try {
    body(rank, *self);
  } catch (const comm_error&) {
    if (self->engine().has_copies()) self->engine().copies().synchronize();
    throw;
  }
  if constexpr (takes_arbiter<Rank>)
    if (streams.arbiter != nullptr) rank.finish();
}

}  // namespace belay::inline BELAY_ABI
