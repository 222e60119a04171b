// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Runs a scenario's body on ranks that share a device of the host, and on ranks that have one each and communicate over
// an NCCL of the host. Waits of streams may be forgotten. Nothing stays on a device, however the run ends.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/train/launch.hpp"
#include "fakes/cuda/forgetful_api.hpp"
#include "fakes/cuda/turned_ranks.hpp"
#include "fakes/cuda/turns.hpp"
#include "fakes/nccl/fake_nccl.hpp"

namespace failures {

using fakes::forgets, fakes::work_order;

/// A wait that hangs ends then, with an error.
inline constexpr std::chrono::seconds patience{240};  // ten ranks under a sanitizer, on cores that others use

/// As few as a world of so many ranks takes, and 512 or more.
constexpr std::size_t slot_bytes(int ranks) { return 512 + (static_cast<std::size_t>(ranks) / 8) * 512; }

/// Checks at its end, which is after the run's.
template <class Fake>
struct left_empty {
  const Fake& of;
  ~left_empty() { CHECK(of.empty()); }
};

/// Its ranks call as their threads happen to run.
struct on_one_device {
  int ranks = 1;
  fakes::device_options how = {work_order::late};
  forgets what = forgets::nothing;

  void operator()(const auto& body, const belay::launch_options& options = {}) const {
    fakes::forgetful_api api(how, what);
    const left_empty<fakes::forgetful_api> end{api};
    belay::launch(
        belay::cuda::world(api, belay::host::world(ranks, {.timeout = patience}), {.slot_bytes = slot_bytes(ranks)}),
        body, options);
  }
};
/// They take turns from the seed of `how`, which costs more.
struct on_one_device_in_turns {
  int ranks = 1;
  fakes::device_options how = {work_order::late};

  void operator()(const auto& body, const belay::launch_options& options = {}) const {
    fakes::turns turns(how.seed);
    fakes::device_options with_turns = how;
    with_turns.turns = &turns;
    fakes::forgetful_api api(with_turns, forgets::nothing);
    const left_empty<fakes::forgetful_api> end{api};
    const auto control = fakes::in_turns(turns, belay::host::world(ranks, {.timeout = patience}));
    belay::launch(belay::cuda::world(api, control, {.slot_bytes = slot_bytes(ranks)}), body, options);
  }
};

/// With little to communicate with, so that sums take several rounds.
struct on_device_each {
  int ranks = 1;
  fakes::device_options how = {work_order::late};
  forgets what = forgets::nothing;

  void operator()(const auto& body, const belay::launch_options& options = {}) const {
    fakes::device_options with_devices = how;
    with_devices.devices = ranks;
    fakes::forgetful_api api(with_devices, what);
    const left_empty<fakes::forgetful_api> device_end{api};
    fakes::nccl_fabric fabric(api);
    const left_empty<fakes::nccl_fabric> fabric_end{fabric};
    const belay::nccl::world_options room{
        .ranks = {.workspace_bytes = 192, .watch_period = std::chrono::milliseconds(5)},
        .parent_bytes = 1 << 12,
        .group_bytes = 1 << 12};
    belay::launch(
        belay::nccl::world(api, fakes::nccl_api(fabric), belay::host::world(ranks, {.timeout = patience}), room), body,
        options);
    CHECK(fabric.refusals().empty());
  }
};

}  // namespace failures
