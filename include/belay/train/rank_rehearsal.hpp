// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A training body, and its run over addresses without memory as one rank of a world.
// IWYU pragma: private, include "belay/train/launch.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "belay/comm/group_interface.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rank.hpp"
#include "belay/comm/rehearsal.hpp"
#include "belay/core/bounds.hpp"
#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/memory.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/launch_plan.hpp"
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

/// The engine in which bodies are rehearsed that run on `Engine`: that itself, with streams of the policy `rehearsal`,
/// where its kit has such; else that of the host.
template <class Engine>
struct rehearsed_engine {
  using type = host_engine;
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
concept training_body = requires(Body& body, belay::rank& as, typename run_with<Engine>::type& in) { body(as, in); };

/// One rank's rehearsal of a body on `Engine`, whose streams run nothing, and which other ranks it stands for.
template <class Engine = host_engine>
class rank_rehearsal {
  using run_type = typename run_with<Engine>::type;

 public:
  /// Runs `body` as rank `number` of `size`, with room for `rows` rows a dispatch (0: what the body says), where ranks
  /// compute on what `on` says and their groups promise `promises`; `faults` says whether its faults are explained.
  rank_rehearsal(int number, int size, std::type_identity_t<function_ref<void(belay::rank&, run_type&)>> body,
                 std::uint64_t rows, where at, computes_on on = computes_on::host,
                 const group_traits& promises = rehearsal::group::all_promises(),
                 fault_explanation faults = fault_explanation::none);

  /// Whether `other` runs the body alike: it gives the same answers to all that the body has asked of its rank.
  [[nodiscard]] bool stands_for(int other) const noexcept;
  /// The leases of rank `other`, for which this one stands, and the regions for them.
  [[nodiscard]] planned_run leased_by(int other) const;
  [[nodiscard]] const mesh_record& meshes() const noexcept { return rank_->meshes(); }
  [[nodiscard]] const rehearsal::call_sizes& calls() const noexcept { return asked_->sizes(); }

 private:
  void rehearse(int size, function_ref<void(belay::rank&, run_type&)> body, const run_memory& memory,
                std::uint64_t rows, where at);
  [[nodiscard]] static run_memory everything();

  int number_;
  group_traits promises_;
  fault_explanation faults_;
  std::optional<rehearsal::rank> asked_;
  std::optional<belay::rank> rank_;
  std::optional<run_type> run_;
};

/// The plan of `body` on `size` ranks, rehearsed on `Engine`; see `rehearse`.
template <class Engine>
[[nodiscard]] rehearsal_result rehearse_on(int size,
                                           function_ref<void(belay::rank&, typename run_with<Engine>::type&)> body,
                                           computes_on on, const group_traits& promises, fault_explanation faults,
                                           where at);

/// A world whose ranks compute on a device, and one that gives each its own.
template <class World>
concept has_devices = device_region<typename World::memory_type>;
template <class World>
concept has_own_devices = has_devices<World> && requires { requires World::ranks_have_devices; };

/// The processor that the ranks of a world compute on.
template <class World>
inline constexpr computes_on computes_on_of = has_own_devices<World> ? computes_on::own_device
                                              : has_devices<World>   ? computes_on::device
                                                                     : computes_on::host;

}  // namespace belay::inline BELAY_ABI

#include "belay/train/rank_rehearsal.ipp"  // IWYU pragma: export
