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
using host_run = run<rank, host_engine>;
using host_mesh = mesh<rank>;
template <class T>
using host_store = parameter_store<host_run, host_mesh, precision<T>>;
template <class T>
using host_adamw = adamw<T, group, host_kit<>>;

#if defined(BELAY_SEPARATE_COMPILATION)
extern template class run<rank, host_engine>;
extern template class rank_rehearsal<host_engine>;
extern template rehearsal_result rehearse_on<host_engine>(int, function_ref<void(rank&, host_run&)>, computes_on,
                                                          const group_traits&, where);
extern template void launch_rank<host_engine, host_engine>(launch_under_way&, rank&, body_call<rank, host_engine>,
                                                           body_call<rank, host_engine>);
extern template void expect_agreement(const host_mesh&, std::uint64_t, where);
extern template ballot vote_over(const host_mesh&, const ballot&, std::uint64_t, where);
extern template class mesh<rank>;
extern template class parameter_base<float>;
extern template class parameter_base<double>;
extern template class parameter_base<bf16>;
extern template class store_memory<host_run, host_mesh, precision<float>>;
extern template class store_memory<host_run, host_mesh, precision<double>>;
extern template class store_memory<host_run, host_mesh, precision<bf16>>;
extern template class parameter_store<host_run, host_mesh, precision<float>>;
extern template class parameter_store<host_run, host_mesh, precision<double>>;
extern template class parameter_store<host_run, host_mesh, precision<bf16>>;
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
