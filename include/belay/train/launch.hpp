// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a training body on all ranks of a world, after it has rehearsed it: the body runs once over addresses without
// memory for every rank, so that every byte is known before the first is touched, and a run that does not fit is
// refused with its table.
//
//   auto train = [](belay::rank& rank, auto& run) { ... };
//   int main() { belay::launch(belay::host::world{2}, train); }
//   const belay::rehearsal_result plan = belay::rehearse(4, train);   // of four ranks, without running them
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/comm/launcher.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rank.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/unique_fd.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file/error.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/launch_plan.hpp"
#include "belay/train/launched_ranks.hpp"
#include "belay/train/plan.hpp"
#include "belay/train/rank_rehearsal.hpp"  // IWYU pragma: export
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

/// Stands for the kit that a world's ranks compute with, where a launch names none: `host_kit<>` on the host.
struct kit_of_world {};

/// A world whose ranks have memory and a kit of their own, such as a device's.
template <class World>
concept has_kit = requires {
  typename World::memory_type;
  typename World::kit_type;
};

/// The engine of a rank's run, and the one in which its body is rehearsed. On a host that is one type, where the kit
/// has streams of the policy `rehearsal`. What runs on a device, or with a kit without such streams, is rehearsed with
/// the kit of the host.
template <class World, class Kit>
struct engine_of {
  using type = engine<host_pages, Kit>;
  using rehearsed = typename rehearsed_engine<type>::type;
};
template <class World>
struct engine_of<World, kit_of_world> : engine_of<World, host_kit<>> {};
template <has_kit World, class Kit>
struct engine_of<World, Kit> {
  using type = engine<typename World::memory_type, typename World::kit_type>;
  using rehearsed = typename rehearsed_engine<engine<host_pages, Kit>>::type;
};
template <has_kit World>
struct engine_of<World, kit_of_world> : engine_of<World, host_kit<>> {};
/// The engine in which a body of ranks of the host, or of `World`, is rehearsed.
template <class Kit, class World = void>
using rehearsed_engine_of = typename engine_of<std::remove_cvref_t<World>, Kit>::rehearsed;

/// The promises of a world's groups: those that it tells, or those of a rehearsal that stands for no world.
template <class World>
[[nodiscard]] group_traits promises_of([[maybe_unused]] const World& world) {
  if constexpr (requires { world.promises(); })
    return world.promises();
  else
    return rehearsal::group::all_promises();
}

/// The bytes of its device that the communication of each rank of a world takes, with the groups and collectives that
/// were rehearsed: none of ranks that compute on the host.
template <class World>
[[nodiscard]] estimated_communication communication_of(const World& world, const rehearsal_result& rehearsed) {
  estimated_communication out;
  if constexpr (requires { world.communication_bytes(rehearsed.meshes, rehearsed.calls); }) {
    out.bytes = world.communication_bytes(rehearsed.meshes, rehearsed.calls);
    if constexpr (!has_own_devices<World>)
      out.row = shared_communication_row;
    else if constexpr (!World::sums_in_rank_order)
      out.row = unordered_communication_row;
  }
  return out;
}

/// The plan of `body` on `size` ranks: it is run over addresses without memory, and computes, sends and prints nothing;
/// once for all ranks that give the same answers to what it asks of its rank (number, coordinates, places in groups).
/// Throws what the body throws. Ranks compute on the host, unless `on` says otherwise, with `Kit`. The options say
/// whether a fault of the body is explained.
template <class Kit = kit_of_world, training_body<rehearsed_engine_of<Kit>> Body>
[[nodiscard]] rehearsal_result rehearse(int size, Body&& body, computes_on on, const launch_options& options = {},
                                        where at = where::current()) {
  return rehearse_on<rehearsed_engine_of<Kit>>(size, body, on, rehearsal::group::all_promises(), options.explain_faults,
                                               at);
}
template <class Kit = kit_of_world, training_body<rehearsed_engine_of<Kit>> Body>
[[nodiscard]] rehearsal_result rehearse(int size, Body&& body, const launch_options& options = {},
                                        where at = where::current()) {
  return rehearse<Kit>(size, body, computes_on::host, options, at);
}
/// The plan of `body` on the ranks of `world`, whose groups promise what they will in a run: what they lack is refused
/// here, before anything is allocated.
template <class Kit = kit_of_world, class World, training_body<rehearsed_engine_of<Kit, World>> Body>
  requires requires(const World& world) { world.size(); }
[[nodiscard]] rehearsal_result rehearse(const World& world, Body&& body, const launch_options& options = {},
                                        where at = where::current()) {
  rehearsal_result out = rehearse_on<rehearsed_engine_of<Kit, World>>(world.size(), body, computes_on_of<World>,
                                                                      promises_of(world), options.explain_faults, at);
  out.communication = communication_of(world, out);
  return out;
}

/// A world whose ranks are threads of this process.
template <class World>
inline constexpr bool ranks_are_threads = requires { requires std::remove_cvref_t<World>::ranks_are_threads; };

/// A world that runs bodies of `belay::rank`.
template <class World>
concept runs_ranks = requires(World& world, function_ref<void(rank&)> body, where at) { world.run_ranks(body, at); };

/// The facts of a world before it runs bodies, with the groups and collectives that were planned: it makes room for
/// those.
template <class World>
[[nodiscard]] launched_world_facts facts_of(World& world, [[maybe_unused]] const rehearsal_result& planned,
                                            [[maybe_unused]] where at) {
  using world_type = std::remove_cvref_t<World>;
  launched_world_facts out{.size = world.size(),
                           .on = computes_on_of<world_type>,
                           .promises = promises_of(world),
                           .ranks_are_threads = belay::ranks_are_threads<World>,
                           .communication = communication_of<world_type>(world, planned)};
  if constexpr (requires { world.make_room_for(planned.calls, at); }) world.make_room_for(planned.calls, at);
  if constexpr (requires { world.workspace_bytes(); }) out.workspace = world.workspace_bytes();
  if constexpr (requires { world.available_device_memory(at); }) {
    out.devices.whose = device_room::of::all_ranks;
    out.devices.shared = world.available_device_memory(at);
  } else if constexpr (has_own_devices<world_type>) {
    out.devices.whose = device_room::of::each_rank;
  }
  return out;
}

/// Runs `body` on every rank of `world`, with the memory of `planned`, a rehearsal of the same body on as many ranks.
/// Throws plan_refused, and what `world.run` throws: the first cause.
template <class Kit = kit_of_world, class World, training_body<rehearsed_engine_of<Kit, World>> Body>
void launch(World&& world, Body&& body, const rehearsal_result& planned, const launch_options& options = {},
            where at = where::current()) {
  using engine_type = typename engine_of<std::remove_cvref_t<World>, Kit>::type;
  using rehearsed_type = rehearsed_engine_of<Kit, World>;
  using kit_streams = launch_under_way::kit_streams;
  launch_under_way launched(facts_of(world, planned, at), planned, options, at);
  launched.choose_streams(has_stream_settings<engine_type> ? kit_streams::of_settings : kit_streams::at_once);
  // Bodies have one type of rank, whatever the backend.
  if constexpr (runs_ranks<World>) {
    world.run_ranks([&](rank& self) { launch_rank<engine_type, rehearsed_type>(launched, self, {}, body, body); }, at);
  } else {
    const auto rank_body = [&](auto& of_backend) {
      rank self(of_backend);
      launch_rank<engine_type, rehearsed_type>(launched, self, run_parts_of<engine_type>(of_backend), body, body);
    };
    if constexpr (requires { world.run(rank_body, at); })
      world.run(rank_body, at);
    else
      world.run(rank_body);
  }
}

/// Rehearses `body`, refuses what does not fit, and runs it on every rank of `world`: threads, processes, or this
/// process's rank where a launcher has started them. What the run leases outlives every body. Throws plan_refused, and
/// what `world.run` throws: the first cause. Layers compute with `Kit`: `launch<my_kit>(world, body)`.
template <class Kit = kit_of_world, class World, training_body<rehearsed_engine_of<Kit, World>> Body>
void launch(World&& world, Body&& body, const launch_options& options = {}, where at = where::current()) {
  launch<Kit>(world, body, rehearse<Kit>(world, body, options, at), options, at);
}

/// Whether this process prints `error`, of all that a launcher has started: errors that every rank has alike are told
/// by rank 0, a failed peer by the first that has not failed itself, and not where belay-run has said so already. What
/// a rank's own file of a tier refuses it tells itself: mpirun ends the others before they can.
[[nodiscard]] bool should_report(const std::exception& error, const launcher_environment& found = find_launcher());

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/train/launch.ipp"  // IWYU pragma: export
#endif
