// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The door of a program that trains on a GPU: all of belay/belay.hpp, ranks that share a GPU, and the runtime that nvcc
// compiles kernels for. Where the target belay::cuda has compiled steps, stores and optimizers of a GPU once, a source
// that comes in by here compiles its own layers alone.
//
//   #include "belay/cuda.cuh"
//   belay::cuda::runtime_api gpu;
//   belay::launch(belay::cuda::world(gpu, belay::host::world(2)), [](belay::rank& rank, auto& run) { ... });
#pragma once

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/belay.hpp"

namespace belay::inline BELAY_ABI {

/// The engine and the run of a body on a GPU, and over parameters of type T the store and the optimizer.
using cuda_engine = engine<cuda::tier_memory<cuda::runtime_api>, cuda::kit<cuda::runtime_api>>;
using cuda_run = run_of<cuda_engine>;
template <class T>
using cuda_store = parameter_store<cuda_run, precision<T>>;
template <class T>
using cuda_adamw = adamw<T, cuda_run::group_type, cuda::kit<cuda::runtime_api>>;

#if defined(BELAY_CUDA_SEPARATE_COMPILATION)
extern template class typed_group<cuda::group<cuda::runtime_api, host::rank>>;
extern template class typed_rank<cuda::rank<cuda::runtime_api, host::rank>>;
extern template class engine<cuda::tier_memory<cuda::runtime_api>, cuda::kit<cuda::runtime_api>>;
extern template class step_core<cuda_engine>;
extern template struct handle_calls<cuda_engine>;
extern template class copy_stream<cuda::stream<cuda::runtime_api>>;
extern template void expect_kept_of<cuda_engine>(const cuda_engine&, const invocation&, const invocation_memory&,
                                                 const output_bytes&);
extern template class offloaded_activations<cuda_engine>;
extern template offloaded_activations<cuda_engine>::offloaded_activations(cuda_run&, tier, const file_memory&, where);
extern template class phase_residency<cuda_run>;
extern template class run_of<cuda_engine>;
extern template void launch_rank<cuda_engine, host_engine>(launch_under_way&, rank&, const run_parts<cuda_engine>&,
                                                           body_call<cuda_engine>, body_call<host_engine>);
extern template class checkpoints<cuda_run>;
extern template class parameter_store<cuda_run, precision<float>>;
extern template class adamw<float, cuda_run::group_type, cuda::kit<cuda::runtime_api>>;
extern template cuda_adamw<float>::adamw(cuda_store<float>&, adamw_settings, const optimizer_memory&, where);
extern template class phase_switch<cuda_run, cuda_store<float>>;
extern template void phase_switch<cuda_run, cuda_store<float>>::moves(phase_residency<cuda_run>&);
extern template phase_residency<cuda_run>::phase_residency(cuda_run&, const residency_memory&, cuda_store<float>&);
extern template class added_values<posix_files, cuda_store<float>>;
extern template class added_optimizer<posix_files, cuda_store<float>, cuda_adamw<float>>;
extern template void checkpoints<cuda_run>::add(cuda_store<float>&, cuda_adamw<float>&, where);
extern template class parameter_store<cuda_run, precision<bf16>>;
extern template class adamw<bf16, cuda_run::group_type, cuda::kit<cuda::runtime_api>>;
extern template cuda_adamw<bf16>::adamw(cuda_store<bf16>&, adamw_settings, const optimizer_memory&, where);
extern template class phase_switch<cuda_run, cuda_store<bf16>>;
extern template void phase_switch<cuda_run, cuda_store<bf16>>::moves(phase_residency<cuda_run>&);
extern template phase_residency<cuda_run>::phase_residency(cuda_run&, const residency_memory&, cuda_store<bf16>&);
extern template class added_values<posix_files, cuda_store<bf16>>;
extern template class added_optimizer<posix_files, cuda_store<bf16>, cuda_adamw<bf16>>;
extern template void checkpoints<cuda_run>::add(cuda_store<bf16>&, cuda_adamw<bf16>&, where);
namespace cuda {
extern template class stream_state<runtime_api>;
extern template class stream<runtime_api>;
extern template class tier_memory<runtime_api>;
extern template class kit<runtime_api>;
extern template class communication_order<runtime_api>;
extern template class shared_device<runtime_api>;
extern template class group<runtime_api, host::rank>;
extern template class rank<runtime_api, host::rank>;
extern template class world<runtime_api, host::world>;
}  // namespace cuda
#endif

}  // namespace belay::inline BELAY_ABI
