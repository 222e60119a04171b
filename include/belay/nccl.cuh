// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The door of a program that trains on a GPU for each rank: belay/cuda.cuh, and ranks over NCCL. Where the target
// belay::nccl has compiled these once, for ranks that are threads or processes of this machine, a source that comes in
// by here does not.
//
//   #include "belay/nccl.cuh"
//   belay::cuda::runtime_api gpu;
//   const belay::nccl::runtime_nccl nccl;
//   belay::launch(belay::nccl::world(gpu, nccl, belay::host::processes(4)), train);
#pragma once

#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "belay/cuda.cuh"

namespace belay::inline BELAY_ABI {

/// A rank of this machine that has a GPU, and adds in the order of ranks.
using nccl_rank = nccl::rank<host::rank, cuda::runtime_api, nccl::runtime_nccl>;

#if defined(BELAY_NCCL_SEPARATE_COMPILATION)
namespace nccl {
extern template class operations<cuda::runtime_api, runtime_nccl>;
extern template class communicators<runtime_nccl>;
extern template class channel<cuda::runtime_api, runtime_nccl>;
extern template class group<cuda::runtime_api, runtime_nccl, sums::fixed_order, host::group>;
extern template class rank<host::rank, cuda::runtime_api, runtime_nccl>;
}  // namespace nccl
extern template class typed_group<nccl_rank::group_type>;
extern template class typed_rank<nccl_rank>;
#endif

}  // namespace belay::inline BELAY_ABI
