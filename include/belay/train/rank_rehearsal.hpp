// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A training body, and its run over addresses without memory as one rank of a world.
// IWYU pragma: private, include "belay/train/launch.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rank.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

/// The engine in which bodies are rehearsed that run on `Engine`: that itself, with streams of the policy `rehearsal`,
/// where its kit has such; else one whose kit does nothing.
template <class Engine>
struct rehearsed_engine {
  using type = rehearsal_engine;
};
template <class Engine>
  requires std::same_as<typename Engine::memory_type, host_pages> && has_stream_settings<Engine> &&
           requires(const typename Engine::stream_type& stream) { stream.runs_nothing(); }
struct rehearsed_engine<Engine> {
  using type = Engine;
};

/// A body that is rehearsed on `Engine`, and run: `body(rank, run)`, a generic lambda or function object. On ranks that
/// compute on the host `rank` is a `belay::rank`.
template <class Body, class Engine = host_engine>
concept training_body = requires(Body& body, belay::rank& as, run<belay::rank, Engine>& in) { body(as, in); };

/// One rank's rehearsal of a body on `Engine`, whose streams run nothing, and which other ranks it stands for.
template <class Engine = host_engine>
class rank_rehearsal {
  using run_type = run<belay::rank, Engine>;

 public:
  /// Runs `body` as rank `number` of `size`, with room for `rows` rows a dispatch (0: what the body says), where ranks
  /// compute on what `on` says and their groups promise `promises`.
  template <training_body<Engine> Body>
  rank_rehearsal(int number, int size, Body& body, std::uint64_t rows, where at, computes_on on = computes_on::host,
                 const group_traits& promises = rehearsal::group::all_promises())
      : number_(number), promises_(promises) {
    run_memory memory = everything();
    memory.computes = on;
    rehearse(size, body, memory, rows, at);
    memory.gathers = run_->gathers();
    memory.returns = run_->leased().memory.returns;
    // What is gathered or brought back early has other memory than the body alone shows.
    if (!memory.gathers.empty() || !memory.returns.empty()) rehearse(size, body, memory, rows, at);
  }

  /// Whether `other` runs the body alike: it gives the same answers to all that the body has asked of its rank.
  [[nodiscard]] bool stands_for(int other) const noexcept { return asked_->questions().same(number_, other); }
  /// The leases of rank `other`, for which this one stands, and the regions for them.
  [[nodiscard]] planned_run leased_by(int other) const { return run_->leased_by(other); }
  [[nodiscard]] const mesh_record& meshes() const noexcept { return rank_->meshes(); }

 private:
  template <class Body>
  void rehearse(int size, Body& body, const run_memory& memory, std::uint64_t rows, where at) {
    run_.reset();
    rank_.reset();
    asked_.emplace(number_, size, promises_, at);
    rank_.emplace(*asked_);
    run_.emplace(number_, size, planned_run{{}, memory}, typename run_type::planner(),
                 stream_settings{stream_policy::rehearsal});
    run_->engine().make_room(rows);
    body(*rank_, *run_);
  }
  [[nodiscard]] static run_memory everything() {
    run_memory out;
    // Every region gets as much; a sanitizer refuses much more than 64 GiB, a limit on addresses may refuse even that.
    constexpr unsigned most = sanitized_addresses ? 36 : 40;
    out.activations = lesser_of(std::size_t{1} << most, left_in_address_space() / 64);
    out.persistent.fill(out.activations);
    return out;
  }

  int number_;
  group_traits promises_;
  std::optional<rehearsal::rank> asked_;
  std::optional<belay::rank> rank_;
  std::optional<run_type> run_;
};

/// A world whose ranks compute on a device, and one that gives each its own.
template <class World>
concept has_devices = device_region<typename World::memory_type>;
template <class World>
concept has_own_devices = has_devices<World> && requires {
  requires World::ranks_have_devices;
};

/// The processor that the ranks of a world compute on.
template <class World>
inline constexpr computes_on computes_on_of = has_own_devices<World> ? computes_on::own_device
                                              : has_devices<World>   ? computes_on::device
                                                                     : computes_on::host;

}  // namespace belay::inline BELAY_ABI
