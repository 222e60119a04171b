// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The ranks among whom a bucket is reduced.
#pragma once

#include <cstddef>
#include <cstdint>

#include "belay/comm/communicator.hpp"
#include "belay/core/config.hpp"
#include "belay/parallel/bucket/layout.hpp"

namespace belay::inline BELAY_ABI {

/// What the buckets ask of a communicator.
template <class Group, class T>
concept reduces_buckets = communicator<Group> && can_start_all_reduce<Group, T> &&
    can_start_reduce_scatter_v<Group, T> && can_start_all_gather_v<Group, T> && can_all_gather<Group, std::uint64_t>;

/// The ranks that replicate some parameters, as a handle of this rank, and what they divide. The
/// group is a handle; its rank outlives the buckets.
template <class Group>
struct bucket_family {
  Group group;
  zero_stage stage = zero_stage::none;

  operator family_shape() const noexcept { return {static_cast<std::size_t>(group.size()), stage}; }
};

}  // namespace belay::inline BELAY_ABI
