// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The types of a training on ranks of the host: a program that is compiled apart links what they do, out of
// belay/source.hpp, and compiles only what it does with other kits and ranks.
// IWYU pragma: private, include "belay/train.hpp"
#pragma once

#include "belay/comm/group.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rank.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/step/engine.hpp"
#include "belay/train/launched_ranks.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/rank_rehearsal.hpp"
#include "belay/train/run.hpp"
#include "belay/train/store.hpp"

namespace belay::inline BELAY_ABI {

/// The run, the mesh, and over parameters of type T the store and the optimizer, of ranks of the host.
template <class T>
using host_store = parameter_store<run, precision<T>>;
template <class T>
using host_adamw = adamw<T, group, host_kit<>>;

#if defined(BELAY_SEPARATE_COMPILATION)
extern template class run_of<host_engine>;
extern template class rank_rehearsal<host_engine>;
extern template rehearsal_result rehearse_on<host_engine>(int, function_ref<void(rank&, run&)>, computes_on,
                                                          const group_traits&, fault_explanation, where);
extern template void launch_rank<host_engine, host_engine>(launch_under_way&, rank&, const run_parts<host_engine>&,
                                                           body_call<host_engine>, body_call<host_engine>);
extern template class parameter_base<float>;
extern template class parameter_base<double>;
extern template class parameter_base<bf16>;
extern template class store_memory<run, precision<float>>;
extern template class store_memory<run, precision<double>>;
extern template class store_memory<run, precision<bf16>>;
extern template class parameter_store<run, precision<float>>;
extern template class parameter_store<run, precision<double>>;
extern template class parameter_store<run, precision<bf16>>;
extern template class adamw<float, group, host_kit<>>;
extern template class adamw<double, group, host_kit<>>;
extern template class adamw<bf16, group, host_kit<>>;
extern template adamw<float, group, host_kit<>>::adamw(host_store<float>&, adamw_settings, const optimizer_memory&,
                                                       where);
extern template adamw<double, group, host_kit<>>::adamw(host_store<double>&, adamw_settings, const optimizer_memory&,
                                                        where);
extern template adamw<bf16, group, host_kit<>>::adamw(host_store<bf16>&, adamw_settings, const optimizer_memory&,
                                                      where);
#endif

}  // namespace belay::inline BELAY_ABI
