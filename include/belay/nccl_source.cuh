// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The definitions that belay/nccl.cuh leaves out where BELAY_NCCL_SEPARATE_COMPILATION is defined: nvcc compiles them
// once a program. The CMake target belay::nccl does.
#pragma once

#include "belay/nccl.cuh"

#if !defined(BELAY_NCCL_SEPARATE_COMPILATION)
#error \
    "belay/nccl_source.cuh is for programs that are compiled with -DBELAY_NCCL_SEPARATE_COMPILATION: define it \
for every source of the program, or do not include this header"
#endif

namespace belay::inline BELAY_ABI {

namespace nccl {
template class operations<cuda::runtime_api, runtime_nccl>;
template class communicators<runtime_nccl>;
template class channel<cuda::runtime_api, runtime_nccl>;
template class group<cuda::runtime_api, runtime_nccl, sums::fixed_order, host::group>;
template class rank<host::rank, cuda::runtime_api, runtime_nccl>;
}  // namespace nccl
template class typed_group<nccl_rank::group_type>;
template class typed_rank<nccl_rank>;

}  // namespace belay::inline BELAY_ABI
