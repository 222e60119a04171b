// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The NCCL backend with sums in rank order, as the conformance suites see a backend: over a fake NCCL and a fake device
// whose streams are late.
#pragma once

#include <chrono>
#include <vector>

#include "belay/backend/cuda.hpp"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "conformance/staged_group.hpp"
#include "fakes/cuda/fake_api.hpp"
#include "fakes/nccl/fake_nccl.hpp"

namespace conformance {

// `Handle` is the type of groups: the backend's own, or `belay::group`.
template <class Handle = own_group>
struct nccl_ranks {
  using rank_type =
      belay::nccl::rank<belay::host::rank, fakes::device_api, fakes::nccl_api, belay::nccl::sums::fixed_order>;

  template <class Body>
  static std::vector<bool> run(int ranks, Body body) {
    return run(ranks, std::chrono::seconds(120), body);
  }
  template <class Body>
  static std::vector<bool> run(int ranks, std::chrono::duration<double> timeout, Body body) {
    return run_bare(
        ranks,
        [&](rank_type& rank) {
          staged_rank<rank_type, fakes::device_api, Handle> staged(rank);
          return body(staged);
        },
        timeout);
  }
  // The ranks themselves.
  template <class Body>
  static std::vector<bool> run_bare(int ranks, Body body,
                                    std::chrono::duration<double> timeout = std::chrono::seconds(120)) {
    fakes::device_api gpu({.order = fakes::work_order::late, .devices = ranks});
    fakes::nccl_fabric fabric(gpu);
    std::vector<bool> out = belay::host::world{ranks, {.timeout = timeout}}.run([&](belay::host::rank& control) {
      fakes::nccl_api nccl(fabric);
      const belay::cuda::device<fakes::device_api> device(gpu, control.number(),
                                                          belay::cuda::device_number{control.number()});
      // Little, so that sums take several rounds.
      rank_type rank(control, device, nccl, {.workspace_bytes = 16384});
      const bool held = body(rank);
      rank.finish();
      return held;
    });
    if (!gpu.empty() || !fabric.empty() || !fabric.refusals().empty()) out.push_back(false);
    return out;
  }
};

}  // namespace conformance
