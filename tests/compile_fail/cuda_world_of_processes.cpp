// expect: ranks that share a device are threads of one process
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "fakes/cuda/fake_api.hpp"

void start(fakes::device_api& api) {
#ifdef BELAY_BROKEN
  const belay::cuda::world world(api, belay::host::processes(2));
#else
  const belay::cuda::world world(api, belay::host::world(2));
#endif
  static_cast<void>(world);
}
