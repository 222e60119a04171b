// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A training body, and its run over addresses without memory as one rank of a world.
// IWYU pragma: private, include "belay/train/launch.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "belay/comm/mesh.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

/// A body that runs on a real rank and on a rehearsed one: `body(rank, run)`, a generic lambda or function object.
template <class Body>
concept training_body =
    requires(Body& body, rehearsal::rank& rank, run<rehearsal::rank, rehearsal_engine>& run) { body(rank, run); };

/// One rank's rehearsal of a body, and which other ranks it stands for.
class rank_rehearsal {
 public:
  /// Runs `body` as rank `number` of `size`, with room for `rows` rows a dispatch (0: what the body says), where ranks
  /// compute on what `on` says.
  template <training_body Body>
  rank_rehearsal(int number, int size, Body& body, std::uint64_t rows, where at, computes_on on = computes_on::host)
      : number_(number) {
    run_memory memory = everything();
    memory.computes = on;
    rehearse(size, body, memory, rows, at);
    memory.gathers = run_->gathers();
    memory.returns = run_->leased().memory.returns;
    // What is gathered or brought back early has other memory than the body alone shows.
    if (!memory.gathers.empty() || !memory.returns.empty()) rehearse(size, body, memory, rows, at);
  }

  /// Whether `other` runs the body alike: it gives the same answers to all that the body has asked of its rank.
  [[nodiscard]] bool stands_for(int other) const noexcept { return rank_->questions().same(number_, other); }
  /// The leases of rank `other`, for which this one stands, and the regions for them.
  [[nodiscard]] planned_run leased_by(int other) const { return run_->leased_by(other); }
  [[nodiscard]] const mesh_record& meshes() const noexcept { return rank_->meshes(); }

 private:
  template <class Body>
  void rehearse(int size, Body& body, const run_memory& memory, std::uint64_t rows, where at) {
    run_.reset();
    rank_.emplace(number_, size, at);
    run_.emplace(number_, size, planned_run{{}, memory});
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
  std::optional<rehearsal::rank> rank_;
  std::optional<run<rehearsal::rank, rehearsal_engine>> run_;
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
