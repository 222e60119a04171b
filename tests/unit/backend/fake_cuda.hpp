// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rank's device that is the host's, for tests of the CUDA backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "fakes/cuda/fake_api.hpp"

namespace fake_cuda {

using api_type = fakes::device_api;
using memory_type = belay::cuda::device_memory<api_type>;
using host_side = belay::cuda::pinned_memory<api_type>;
using kit_type = belay::cuda::kit<api_type>;
using stream_type = belay::cuda::stream<api_type>;

// Every order, and for `random` some seeds.
inline std::vector<fakes::device_options> orders() {
  std::vector<fakes::device_options> out{{fakes::work_order::eager}, {fakes::work_order::late}};
  for (std::uint64_t seed = 0; seed < 20; ++seed) out.push_back({fakes::work_order::random, seed});
  return out;
}

// A rank's device with some memory, and the host's side of it.
struct bench {
  explicit bench(const fakes::device_options& options = {})
      : api(options),
        gpu(api),
        memory(gpu, 1 << 16),
        pinned(gpu, 1 << 16),
        kit(gpu),
        copies(gpu, belay::stream_kind::copy) {}

  template <class T>
  T* on_device(std::size_t byte) {
    return reinterpret_cast<T*>(memory.data() + byte);
  }
  template <class T>
  T* on_host(std::size_t byte) {
    return reinterpret_cast<T*>(pinned.data() + byte);
  }
  // All of the host's side to the device, in the order of the kit's stream, and back.
  void upload() { kit.stream().copy(memory.data(), pinned.data(), memory.size_bytes()); }
  void download() {
    kit.stream().copy(pinned.data(), memory.data(), memory.size_bytes());
    kit.stream().synchronize();
  }

  api_type api;
  belay::cuda::device<api_type> gpu;
  memory_type memory;
  host_side pinned;
  kit_type kit;
  stream_type copies;
};

}  // namespace fake_cuda
