// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The definitions of sorting.cuh, which belay::cuda compiles once a program.
#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "belay/backend/cuda/launch.cuh"
#include "belay/backend/cuda/sorting.cuh"
#include "belay/kernel/elementwise.hpp"

namespace belay::inline BELAY_ABI::cuda {
namespace {

// Asks `run(memory, bytes)` for what it needs, and runs it in the room.
template <class Run>
cudaError_t run_in(std::span<std::byte> room, const Run& run) {
  std::size_t bytes = 0;
  const cudaError_t asked = run(nullptr, bytes);
  if (asked != cudaSuccess) return asked;
  if (bytes > room.size()) return cudaErrorMemoryAllocation;
  bytes = room.size();
  return run(static_cast<void*>(room.data()), bytes);
}

struct own_index {
  std::int32_t* to;
  BELAY_HD void operator()(std::size_t i) const { to[i] = static_cast<std::int32_t>(i); }
};
struct inverted {
  const std::int32_t* order;
  std::int32_t* places;
  BELAY_HD void operator()(std::size_t i) const { places[order[i]] = static_cast<std::int32_t>(i); }
};
struct not_negative {
  const std::int32_t* values;
  BELAY_HD bool operator()(std::int32_t position) const { return values[position] >= 0; }
};

constexpr std::size_t in_whole_lines(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Of keys that are all below it.
constexpr int bits_of(std::size_t limit) {
  int bits = 0;
  while (bits < 31 && (std::size_t{1} << bits) < limit) ++bits;
  return bits;
}

}  // namespace

cudaError_t queue_histogram(cudaStream_t on, std::span<std::byte> room, view<const std::int32_t, 1> values,
                            view<std::int64_t, 1> counts) {
  if (values.size() == 0) return launch_each(on, counts.size(), kernel::fill<std::int64_t>{counts.data(), 0});
  return run_in(room, [&](void* memory, std::size_t& bytes) {
    return cub::DeviceHistogram::HistogramEven(
        memory, bytes, values.data(), reinterpret_cast<unsigned long long*>(counts.data()),
        static_cast<int>(counts.size()) + 1, std::int32_t{0}, static_cast<std::int32_t>(counts.size()),
        static_cast<std::int64_t>(values.size()), on);
  });
}

cudaError_t find_sort_bytes(std::size_t keys, std::size_t limit, std::size_t& bytes) {
  const std::int32_t* const from = nullptr;
  std::int32_t* const to = nullptr;
  const cudaError_t got = cub::DeviceRadixSort::SortPairs(nullptr, bytes, from, to, from, to,
                                                          static_cast<std::int64_t>(keys), 0, bits_of(limit));
  bytes += 3 * in_whole_lines(keys * sizeof(std::int32_t));
  return got;
}

cudaError_t queue_sort(cudaStream_t on, std::span<std::byte> room, view<const std::int32_t, 1> keys, std::size_t limit,
                       view<std::int32_t, 1> places) {
  const std::size_t count = keys.size(), array = in_whole_lines(count * sizeof(std::int32_t));
  if (room.size() < 3 * array) return cudaErrorMemoryAllocation;
  auto* const sorted = reinterpret_cast<std::int32_t*>(room.data());
  auto* const first = reinterpret_cast<std::int32_t*>(room.data() + array);
  auto* const order = reinterpret_cast<std::int32_t*>(room.data() + 2 * array);
  cudaError_t got = launch_each(on, count, own_index{first});
  if (got != cudaSuccess) return got;
  got = run_in(room.subspan(3 * array), [&](void* memory, std::size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys.data(), sorted, first, order,
                                           static_cast<std::int64_t>(count), 0, bits_of(limit), on);
  });
  return got != cudaSuccess ? got : launch_each(on, count, inverted{order, places.data()});
}

cudaError_t queue_select(cudaStream_t on, std::span<std::byte> room, view<const std::int32_t, 1> values,
                         view<std::int32_t, 1> positions, std::int64_t* count) {
  return run_in(room, [&](void* memory, std::size_t& bytes) {
    return cub::DeviceSelect::If(memory, bytes, thrust::counting_iterator<std::int32_t>(0), positions.data(), count,
                                 static_cast<std::int64_t>(values.size()), not_negative{values.data()}, on);
  });
}

}  // namespace belay::inline BELAY_ABI::cuda
