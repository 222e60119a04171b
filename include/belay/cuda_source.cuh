// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The definitions that belay/cuda.cuh leaves out where BELAY_CUDA_SEPARATE_COMPILATION is defined: nvcc compiles them
// once a program. The CMake target belay::cuda does, part by part.
#pragma once

#include "belay/cuda.cuh"

#if !defined(BELAY_CUDA_SEPARATE_COMPILATION)
#error \
    "belay/cuda_source.cuh is for programs that are compiled with -DBELAY_CUDA_SEPARATE_COMPILATION: define it \
for every source of the program, or do not include this header"
#endif

// Streams, memory and groups of a GPU, its engine, steps, runs and launches.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 1
#include "belay/backend/cuda/sorting.cu"

namespace belay::inline BELAY_ABI {

namespace cuda {
template class stream_state<runtime_api>;
template class stream<runtime_api>;
template class tier_memory<runtime_api>;
template class kit<runtime_api>;
template class communication_order<runtime_api>;
template class shared_device<runtime_api>;
template class group<runtime_api, host::rank>;
template class rank<runtime_api, host::rank>;
template class world<runtime_api, host::world>;
}  // namespace cuda
template class typed_group<cuda::group<cuda::runtime_api, host::rank>>;
template class typed_rank<cuda::rank<cuda::runtime_api, host::rank>>;
template class engine<cuda::tier_memory<cuda::runtime_api>, cuda::kit<cuda::runtime_api>>;
template class step_core<cuda_engine>;
template struct handle_calls<cuda_engine>;
template class copy_stream<cuda::stream<cuda::runtime_api>>;
template void expect_kept_of<cuda_engine>(const cuda_engine&, const invocation&, const invocation_memory&,
                                          const output_bytes&);
template class offloaded_activations<cuda_engine>;
template offloaded_activations<cuda_engine>::offloaded_activations(cuda_run&, tier, const file_memory&, where);
template class phase_residency<cuda_run>;
template class run_of<cuda_engine>;
template void launch_rank<cuda_engine, host_engine>(launch_under_way&, rank&, const run_parts<cuda_engine>&,
                                                    body_call<cuda_engine>, body_call<host_engine>);
template class checkpoints<cuda_run>;

}  // namespace belay::inline BELAY_ABI
#endif

// Stores of parameters of type float, AdamW over them, their phases and checkpoints.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 2
namespace belay::inline BELAY_ABI {

template class parameter_store<cuda_run, precision<float>>;
template class adamw<float, cuda_run::group_type, cuda::kit<cuda::runtime_api>>;
template cuda_adamw<float>::adamw(cuda_store<float>&, adamw_settings, const optimizer_memory&, where);
template class phase_switch<cuda_run, cuda_store<float>>;
template void phase_switch<cuda_run, cuda_store<float>>::moves(phase_residency<cuda_run>&);
template phase_residency<cuda_run>::phase_residency(cuda_run&, const residency_memory&, cuda_store<float>&);
template class added_values<posix_files, cuda_store<float>>;
template class added_optimizer<posix_files, cuda_store<float>, cuda_adamw<float>>;
template void checkpoints<cuda_run>::add(cuda_store<float>&, cuda_adamw<float>&, where);

}  // namespace belay::inline BELAY_ABI
#endif

// Stores of parameters of type bf16, AdamW over them, their phases and checkpoints.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 3
namespace belay::inline BELAY_ABI {

template class parameter_store<cuda_run, precision<bf16>>;
template class adamw<bf16, cuda_run::group_type, cuda::kit<cuda::runtime_api>>;
template cuda_adamw<bf16>::adamw(cuda_store<bf16>&, adamw_settings, const optimizer_memory&, where);
template class phase_switch<cuda_run, cuda_store<bf16>>;
template void phase_switch<cuda_run, cuda_store<bf16>>::moves(phase_residency<cuda_run>&);
template phase_residency<cuda_run>::phase_residency(cuda_run&, const residency_memory&, cuda_store<bf16>&);
template class added_values<posix_files, cuda_store<bf16>>;
template class added_optimizer<posix_files, cuda_store<bf16>, cuda_adamw<bf16>>;
template void checkpoints<cuda_run>::add(cuda_store<bf16>&, cuda_adamw<bf16>&, where);

}  // namespace belay::inline BELAY_ABI
#endif
