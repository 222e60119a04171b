// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A kernel of a user, and a sort, which is Belay's own source for nvcc. Where there is no driver: one error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/device.hpp"

namespace user {

constexpr std::size_t count = 100;

struct descending {
  std::int32_t* to;
  BELAY_HD void operator()(std::size_t i) const { to[i] = static_cast<std::int32_t>(count - 1 - i); }
};

// Whether each of the descending keys is told its place.
inline bool sorts(const belay::cuda::device<belay::cuda::runtime_api>& gpu) {
  using api_type = belay::cuda::runtime_api;
  belay::cuda::kit<api_type> kit(gpu);
  const belay::cuda::device_memory<api_type> keys(gpu, count * 4), places(gpu, count * 4),
      workspace(gpu, kit.workspace_bytes());
  const belay::cuda::pinned_memory<api_type> here(gpu, count * 4);
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  auto* const key = reinterpret_cast<std::int32_t*>(keys.data());
  kit.each(count, descending{key});
  kit.sort({key, {count}}, count, {reinterpret_cast<std::int32_t*>(places.data()), {count}});
  kit.stream().copy(here.data(), places.data(), count * 4);
  kit.stream().synchronize();
  std::size_t right = 0;
  for (std::size_t i = 0; i < count; ++i)
    right +=
        reinterpret_cast<const std::int32_t*>(here.data())[i] == static_cast<std::int32_t>(count - 1 - i) ? 1U : 0U;
  return right == count;
}

inline int run() {
  belay::cuda::runtime_api api;
  try {
    const belay::cuda::device<belay::cuda::runtime_api> gpu(api);
    const bool right = sorts(gpu);
    std::printf(right ? "sorted\n" : "not sorted\n");
    return right ? 0 : 1;
  } catch (const belay::backend_error& problem) {
    std::printf("%s\n", problem.what());
    return 4;
  }
}

}  // namespace user
