// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A launch as its ranks share it, whatever their body: what the world is, what was planned for it, and when kernels
// run; and the course of one rank in it.
// IWYU pragma: private, include "belay/train/launch.hpp"
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/comm/group_interface.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"
#include "belay/device/available_memory.hpp"
#include "belay/device/stream_arbiter.hpp"
#include "belay/device/stream_policy.hpp"
#include "belay/device/stream_watch.hpp"
#include "belay/device/tier.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/launch_plan.hpp"
#include "belay/train/rank_rehearsal.hpp"
#include "belay/train/run.hpp"

namespace belay::inline BELAY_ABI {

/// A world, as its launch knows it before it runs.
struct launched_world_facts {
  /// The ranks, and what they compute on.
  int size = 1;
  computes_on on = computes_on::host;
  group_traits promises = {};
  bool ranks_are_threads = false;
  std::size_t workspace = 0;  // bytes of kit and groups, which a rehearsal does not know
  device_room devices = {};
  estimated_communication communication = {};
};

/// The part of a launch that all ranks share. It outlives them, as do the options.
class launch_under_way {
 public:
  /// Throws plan_refused where `planned` does not fit, and usage_error where it is of another number of ranks, or where
  /// streams cannot run as the options say: with a kit that is not made of `stream_settings`, only at once.
  launch_under_way(const launched_world_facts& world, const rehearsal_result& planned, const launch_options& options,
                   where at);
  launch_under_way(const launch_under_way&) = delete;
  launch_under_way& operator=(const launch_under_way&) = delete;

  [[nodiscard]] const launched_world_facts& world() const noexcept { return world_; }
  [[nodiscard]] const launch_options& options() const noexcept { return *options_; }
  [[nodiscard]] const mesh_record& meshes() const noexcept { return planned_.meshes; }
  [[nodiscard]] where site() const noexcept { return at_; }
  [[nodiscard]] planned_run planned(int rank) const;

  /// The streams of all ranks. Throws usage_error where they cannot be as chosen; `settings` says whether the kit is
  /// made of them.
  enum class kit_streams : std::uint8_t { of_settings, at_once };
  void choose_streams(kit_streams settings);
  [[nodiscard]] const stream_settings& streams() const noexcept { return streams_; }

  /// Throws plan_refused where what was planned, or has grown, does not fit into what devices have left.
  void expect_fits_in(const device_room& devices) const;
  void expect_fits_in(const device_room& devices, std::vector<rank_plan> grown) const;

  /// Keeps a rank's run until all bodies have ended: a communication that is under way when a body is left by an
  /// exception still uses its rank's memory.
  void keep(int rank, std::shared_ptr<void> run) { kept_[static_cast<std::size_t>(rank)] = std::move(run); }

 private:
  launched_world_facts world_;
  const launch_options* options_;
  where at_;
  int ranks_here_;
  rehearsal_result planned_;
  stream_settings streams_;
  std::vector<std::shared_ptr<void>> kept_;
};

/// Every rank's `own`, told over the group for what ranks agree on. Collective.
template <class T, class Rank>
[[nodiscard]] std::vector<T> told_by_ranks(Rank& rank, const T& own, where at) {
  std::vector<T> all(static_cast<std::size_t>(rank.size()));
  control_of(rank.world()).all_gather(std::span<const T>(&own, 1), std::span<T>(all), at);
  return all;
}

/// A body, in runs on one engine, and its rehearsal.
template <class Engine>
using body_call = std::type_identity_t<function_ref<void(rank&, typename run_with<Engine>::type&)>>;

/// Where the run of a backend's rank gets its memory and its kit. The rank outlives them.
template <class Engine, class Rank>
[[nodiscard]] run_parts<Engine> run_parts_of([[maybe_unused]] Rank& rank) {
  if constexpr (requires { rank.make_kit(); })
    return {[&rank](tier where_it_is, std::size_t bytes) { return rank.make_memory(where_it_is, bytes); },
            [&rank] { return rank.make_kit(); }};
  else
    return {};
}

/// Runs `body` as one rank of a launch, whose run has its memory and kit of `parts`. A replay rehearses it anew, as
/// `rehearsed`. A communication that begins after a copy between tiers fails where that has: what the rank then throws
/// is why the copy failed, such as a `tier_file_error`.
template <class Engine, class Rehearsed>
void launch_rank(launch_under_way& launch, rank& self, const run_parts<Engine>& parts, body_call<Engine> body,
                 body_call<Rehearsed> rehearsed);

}  // namespace belay::inline BELAY_ABI

#include "belay/train/launched_ranks.ipp"  // IWYU pragma: export
