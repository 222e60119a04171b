// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Ranks that share a device of the host, in each order of its streams.
#pragma once

#include "conformance/ranks_of_device.hpp"
#include "fakes/cuda/fake_api.hpp"

namespace conformance {

template <fakes::work_order... Orders>
struct fake_devices {
  template <class Use>
  static void on(fakes::work_order order, const Use& use) {
    fakes::device_api api({order, 5});
    use(api);
  }
  template <class Use>
  static void on_each(const Use& use) {
    (on(Orders, use), ...);
  }
  template <class Use>
  static void on_one(const Use& use) {
    on(fakes::work_order::late, use);
  }
};

template <class Handle>
using cuda_ranks_of =
    ranks_of_device<fake_devices<fakes::work_order::eager, fakes::work_order::late, fakes::work_order::random>, Handle>;
// For what happens on the host.
using late_cuda_ranks = ranks_of_device<fake_devices<fakes::work_order::late>>;
using bare_cuda_ranks = bare_ranks_of_device<fake_devices<fakes::work_order::late>>;

}  // namespace conformance
