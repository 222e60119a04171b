// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// On which devices the ranks of a world of threads run: there is one rule, and it is asked here.
//
//   if (belay::cuda::placed_ranks(api, 4) == belay::cuda::rank_devices::one_each)
//     belay::launch(belay::nccl::world(api, nccl, belay::host::world(4)), train);
//   else
//     belay::launch(belay::cuda::world(api, belay::host::world(4)), train);
#pragma once

#include <cstdint>

#include "belay/backend/cuda/device_api.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// A device for each rank, or one that all share. There are no mixtures.
enum class rank_devices : std::uint8_t { one_each, one_shared };

/// How many devices this process sees. Throws backend_error where there is no driver.
template <device_api Api>
[[nodiscard]] int device_count(Api& api, int rank = 0, where at = where::current()) {
  int devices = 0;
  const auto got = api.count_devices(devices);
  if (!api.succeeded(got)) throw backend_error({"count_devices", rank, 0, api.text(got), at});
  return devices;
}

/// A device for each of `ranks` threads of this process if there are enough, else all share the first. Throws
/// backend_error where there is no driver.
template <device_api Api>
[[nodiscard]] rank_devices placed_ranks(Api& api, int ranks, where at = where::current()) {
  return device_count(api, 0, at) >= ranks ? rank_devices::one_each : rank_devices::one_shared;
}

}  // namespace belay::inline BELAY_ABI::cuda
