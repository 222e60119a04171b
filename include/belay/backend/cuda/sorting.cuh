// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Counting, scanning, sorting and selecting by CUB. It takes long to compile, so it is only declared here: sorting.cu
// defines it, which belay::cuda adds to what links it, once a program.
// IWYU pragma: private, include "belay/backend/cuda/runtime_api.cuh"
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"

namespace belay::inline BELAY_ABI::cuda {

/// Counts values as `kernel::counted_values` does, in the order of a stream. Uses `room` until it has run;
/// cudaErrorMemoryAllocation where that is too small.
[[nodiscard]] cudaError_t queue_histogram(cudaStream_t on, std::span<std::byte> room,
                                          view<const std::int32_t, 1> values, view<std::int64_t, 1> counts);
/// How many bytes of room a sort of so many keys needs, all below `limit`: 16 a key, and some.
[[nodiscard]] cudaError_t find_sort_bytes(std::size_t keys, std::size_t limit, std::size_t& bytes);
/// Finds the places of keys as `kernel::sorted_places` does, in the order of a stream. Uses `room` until it has run;
/// cudaErrorMemoryAllocation where that is too small.
[[nodiscard]] cudaError_t queue_sort(cudaStream_t on, std::span<std::byte> room, view<const std::int32_t, 1> keys,
                                     std::size_t limit, view<std::int32_t, 1> places);
/// Selects positions as `kernel::selected_positions` does, in the order of a stream. Uses `room` until it has run;
/// cudaErrorMemoryAllocation where that is too small.
[[nodiscard]] cudaError_t queue_select(cudaStream_t on, std::span<std::byte> room, view<const std::int32_t, 1> values,
                                       view<std::int32_t, 1> positions, std::int64_t* count);

}  // namespace belay::inline BELAY_ABI::cuda
