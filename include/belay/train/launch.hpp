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
#include "belay/device/device_usage.hpp"
#include "belay/device/kit.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file/error.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/launch_plan.hpp"
#include "belay/train/plan.hpp"
#include "belay/train/plan_exchange.hpp"
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
/// has streams of the policy `rehearsal`. What runs on a device is rehearsed with the kit of the host that a launch
/// names, or with one that does nothing.
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
struct engine_of<World, kit_of_world> : engine_of<World, rehearsal_kit> {};
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

/// The plan of `body` on `size` ranks, rehearsed on `Engine`; see `rehearse`.
template <class Engine, training_body<Engine> Body>
[[nodiscard]] rehearsal_result rehearse_on(int size, Body& body, computes_on on, const group_traits& promises,
                                           where at) {
  rehearsal_result out;
  std::vector<std::optional<planned_run>> all(static_cast<std::size_t>(size));
  for (int number = 0; number < size; ++number) {
    if (all[static_cast<std::size_t>(number)]) continue;
    const rank_rehearsal<Engine> kind(number, size, body, 0, at, on, promises);
    for (int other = number; other < size; ++other)
      if (kind.stands_for(other)) all[static_cast<std::size_t>(other)] = kind.leased_by(other);
    out.meshes.add(kind.meshes());
    ++out.rehearsed;
  }
  std::vector<rank_plan> plans;
  for (auto& each : all) {
    out.memory.push_back(std::move(each->memory));
    plans.push_back(std::move(each->plan));
  }
  out.plan = belay::plan(std::move(plans));
  return out;
}

/// The plan of `body` on `size` ranks: it is run over addresses without memory, and computes, sends and prints nothing;
/// once for all ranks that give the same answers to what it asks of its rank (number, coordinates, places in groups).
/// Throws what the body throws. Ranks compute on the host, unless `on` says otherwise, with `Kit`.
template <class Kit = kit_of_world, training_body<rehearsed_engine_of<Kit>> Body>
[[nodiscard]] rehearsal_result rehearse(int size, Body&& body, computes_on on, where at = where::current()) {
  return rehearse_on<rehearsed_engine_of<Kit>>(size, body, on, rehearsal::group::all_promises(), at);
}
template <class Kit = kit_of_world, training_body<rehearsed_engine_of<Kit>> Body>
[[nodiscard]] rehearsal_result rehearse(int size, Body&& body, where at = where::current()) {
  return rehearse<Kit>(size, body, computes_on::host, at);
}
/// The plan of `body` on the ranks of `world`, whose groups promise what they will in a run: what they lack is refused
/// here, before anything is allocated.
template <class Kit = kit_of_world, class World, training_body<rehearsed_engine_of<Kit, World>> Body>
  requires requires(const World& world) { world.size(); }
[[nodiscard]] rehearsal_result rehearse(const World& world, Body&& body, where at = where::current()) {
  return rehearse_on<rehearsed_engine_of<Kit, World>>(world.size(), body, computes_on_of<World>, promises_of(world),
                                                      at);
}

/// A world whose ranks are threads of this process.
template <class World>
inline constexpr bool ranks_are_threads = requires {
  requires std::remove_cvref_t<World>::ranks_are_threads;
};

/// A rank whose communication an arbiter can order: one that is a thread of this process.
template <class Rank>
concept takes_arbiter = requires(Rank& rank, std::shared_ptr<stream_arbiter> arbiter) {
  rank.use(arbiter);
};

/// A rank whose world bounds the waits for its streams.
template <class Rank>
concept watches_streams = requires(const Rank& rank) {
  { rank.watch() } -> std::convertible_to<std::shared_ptr<const stream_watch>>;
};

/// A rank that says what it takes of its device beside the plan.
template <class Rank>
concept tells_usage = requires(const Rank& rank) {
  { rank.usage() } -> std::same_as<device_usage>;
};
/// A rank that has a device of its own, makes its communicators at launch, and measures what that has left.
template <class Rank>
concept measures_device = tells_usage<Rank> && requires(Rank& rank, where at) {
  rank.make_recorded_groups(at);
  { rank.available_device_memory(at) } -> std::same_as<std::size_t>;
};

/// Every rank's `own`, told over the group for what ranks agree on. Collective.
template <class T, class Rank>
[[nodiscard]] std::vector<T> told_by_ranks(Rank& rank, const T& own, where at) {
  std::vector<T> all(static_cast<std::size_t>(rank.size()));
  control_of(rank.world()).all_gather(std::span<const T>(&own, 1), std::span<T>(all), at);
  return all;
}

/// The streams of all ranks of a world of `size`. Throws usage_error where they cannot be as chosen.
template <class World, class Engine>
[[nodiscard]] stream_settings stream_settings_for(const stream_choice& chosen, int size, where at) {
  if (chosen.policy == stream_policy::immediate) return {};
  if (chosen.policy == stream_policy::rehearsal)
    throw usage_error("a launch runs its body: belay::rehearse(world, body) rehearses it", at);
  if (!has_stream_settings<Engine>)
    throw usage_error(std::string("streams that are ") + name(chosen.policy) +
                          " need a kit that is made of stream_settings, as host_kit is",
                      at);
  if (chosen.policy == stream_policy::queued) return {chosen.policy};
  if (!ranks_are_threads<World>)
    throw usage_error("adversarial streams need ranks that are threads of one process: belay::host::world", at);
  return {chosen.policy, std::make_shared<stream_arbiter>(chosen.seed, static_cast<std::size_t>(size)), nullptr};
}

/// Where a rank's run gets its memory and its kit.
template <class Engine, class Rank>
[[nodiscard]] run_parts<Engine> run_parts_of([[maybe_unused]] Rank& rank) {
  if constexpr (requires { rank.make_kit(); })
    return {[&rank](tier where_it_is, std::size_t bytes) { return rank.make_memory(where_it_is, bytes); },
            [&rank] { return rank.make_kit(); }};
  else
    return {};
}

/// Runs `body` in the run of a rank. A communication that begins after a copy between tiers fails where that has: what
/// the rank then throws is why the copy failed, such as a `tier_file_error`.
template <class Body, class Rank, class Run>
void run_body(Body& body, Rank& rank, Run& self) {
  try {
    body(rank, self);
  } catch (const comm_error&) {
    if (self.engine().has_copies()) self.engine().copies().synchronize();
    throw;
  }
}

/// Runs `body` on every rank of `world`, with the memory of `planned`, a rehearsal of the same body on as many ranks.
/// Throws plan_refused, and what `world.run` throws: the first cause.
template <class Kit = kit_of_world, class World, training_body<rehearsed_engine_of<Kit, World>> Body>
void launch(World&& world, Body&& body, const rehearsal_result& planned, const launch_options& options = {},
            where at = where::current()) {
  const int size = world.size();
  if (planned.memory.size() != static_cast<std::size_t>(size))
    throw usage_error(
        "a plan of " + std::to_string(planned.memory.size()) + " ranks for a world of " + std::to_string(size), at);
  const launcher_environment launcher = find_launcher();
  const bool launched = launcher.size == size && launcher.local_size > 0;
  const int ranks_here = launched ? launcher.local_size : size;
  device_room devices;
  std::size_t workspace = 0;  // of kit and groups, which a rehearsal does not know
  estimated_communication communication;
  if constexpr (requires { world.workspace_bytes(); }) workspace = world.workspace_bytes();
  if constexpr (requires { world.available_device_memory(at); }) {
    devices.whose = device_room::of::all_ranks;
    devices.shared = world.available_device_memory(at);
  } else if constexpr (requires { world.communication_bytes(planned.meshes); }) {
    devices.whose = device_room::of::each_rank;
    communication.bytes = world.communication_bytes(planned.meshes);
    if constexpr (!std::remove_cvref_t<World>::sums_in_rank_order) communication.row = unordered_communication_row;
  }
  rehearsal_result known = planned;
  std::vector<rank_plan> plans;
  for (std::size_t rank = 0; rank < known.memory.size(); ++rank) {
    planned_run one{known.plan.ranks()[rank], known.memory[rank]};
    widen_workspace(one, workspace);
    plans.push_back(std::move(one.plan));
    known.memory[rank] = std::move(one.memory);
  }
  known.plan = belay::plan(std::move(plans));
  expect_fits(priced(known, communication), options, ranks_here, at, devices);
  using engine_type = typename engine_of<std::remove_cvref_t<World>, Kit>::type;
  const group_traits promises = promises_of(world);
  const stream_settings streams = stream_settings_for<World, engine_type>(options.streams, size, at);
  // A communication that is under way when a body is left by an exception still uses its rank's memory.
  std::vector<std::shared_ptr<void>> kept(static_cast<std::size_t>(size));
  const auto rank_body = [&](auto& rank) {
    using rank_type = std::remove_reference_t<decltype(rank)>;
    const int number = rank.number();
    std::optional<stream_arbiter::host> turns;
    if (streams.arbiter != nullptr) turns.emplace(*streams.arbiter);
    if constexpr (has_mesh_record<rank_type>) rank.meshes().add(planned.meshes);
    // Ranks with a device each measure it when they have their communicators; all see all, so that all refuse, or none.
    device_room room = devices;
    if constexpr (measures_device<rank_type>) {
      rank.make_recorded_groups(at);
      room.by_rank = told_by_ranks(rank, rank.available_device_memory(at), at);
      expect_fits(priced(known, communication), options, ranks_here, at, room);
    }
    // Each rank rehearses itself; the same.
    const auto again = [&, number](std::uint64_t rows) {
      constexpr computes_on on = computes_on_of<std::remove_cvref_t<World>>;
      planned_run own =
          rank_rehearsal<rehearsed_engine_of<Kit, World>>(number, size, body, rows, at, on, promises).leased_by(number);
      widen_workspace(own, workspace);
      rehearsal_result grown;
      grown.plan = belay::plan(exchanged_plans(control_of(rank.world()), own.plan, at));
      expect_fits(priced(grown, communication), options, ranks_here, at, room);
      return own;
    };
    // Bodies have one type of rank, whatever the backend; those of devices are still types of their own.
    constexpr bool erased = backend_rank<rank_type>;
    using body_rank = std::conditional_t<erased, belay::rank, rank_type>;
    using run_type = run<body_rank, engine_type>;
    stream_settings own_streams = streams;
    if constexpr (watches_streams<rank_type>) own_streams.watch = rank.watch();
    const auto mine = static_cast<std::size_t>(number);
    auto self = std::make_shared<run_type>(number, size, planned_run{known.plan.ranks()[mine], known.memory[mine]},
                                           again, own_streams, run_parts_of<engine_type>(rank));
    kept[mine] = self;
    if constexpr (tells_usage<rank_type>) {
      device_usage used = rank.usage();
      used.planned = communication.bytes;
      const std::vector<device_usage> measured = told_by_ranks(rank, used, at);
      if (number == 0 && options.measured) options.measured(measured);
    }
    const auto run_here = [&] {
      if constexpr (erased) {
        belay::rank of_body(rank);
        of_body.meshes().add(planned.meshes);
        run_body(body, of_body, *self);
      } else {
        run_body(body, rank, *self);
      }
    };
    if constexpr (takes_arbiter<rank_type>) {
      if (streams.arbiter != nullptr) {
        rank.use(streams.arbiter);
        run_here();
        return rank.finish();
      }
    }
    run_here();
  };
  if constexpr (requires { world.run(rank_body, at); })
    world.run(rank_body, at);
  else
    world.run(rank_body);
}

/// Rehearses `body`, refuses what does not fit, and runs it on every rank of `world`: threads, processes, or this
/// process's rank where a launcher has started them. What the run leases outlives every body. Throws plan_refused, and
/// what `world.run` throws: the first cause. Layers compute with `Kit`: `launch<my_kit>(world, body)`.
template <class Kit = kit_of_world, class World, training_body<rehearsed_engine_of<Kit, World>> Body>
void launch(World&& world, Body&& body, const launch_options& options = {}, where at = where::current()) {
  launch<Kit>(world, body, rehearse<Kit>(world, body, at), options, at);
}

/// Whether this process prints `error`, of all that a launcher has started: errors that every rank has alike are told
/// by rank 0, a failed peer by the first that has not failed itself, and not where belay-run has said so already. What
/// a rank's own file of a tier refuses it tells itself: mpirun ends the others before they can.
[[nodiscard]] inline bool should_report(const std::exception& error,
                                        const launcher_environment& found = find_launcher()) {
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
