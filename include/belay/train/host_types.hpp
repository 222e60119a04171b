// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The types of a training on ranks of the host: a program that is compiled apart links what they do, out of
// belay/source.hpp, and compiles only what it does with other kits and ranks.
// IWYU pragma: private, include "belay/train.hpp"
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "belay/comm/group.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/comm/rank.hpp"
#include "belay/comm/symmetric.hpp"
#include "belay/core/config.hpp"
#include "belay/core/dtype.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/policies.hpp"
#include "belay/core/where.hpp"
#include "belay/device/copy_stream.hpp"
#include "belay/device/host_stream.hpp"
#include "belay/device/streamed_file.hpp"
#include "belay/device/tier.hpp"
#include "belay/device/tier_file.hpp"
#include "belay/parallel/parameter.hpp"
#include "belay/parallel/precision.hpp"
#include "belay/parallel/rank_comparison.hpp"
#include "belay/step/engine.hpp"
#include "belay/step/frame.hpp"
#include "belay/step/layer.hpp"
#include "belay/step/offloaded_activations.hpp"
#include "belay/train/checkpoint.hpp"
#include "belay/train/checkpoint/added_state.hpp"
#include "belay/train/checkpoint/checkpoint_folder.hpp"
#include "belay/train/checkpoint/checkpoint_reader.hpp"
#include "belay/train/checkpoint/checkpoint_writer.hpp"
#include "belay/train/launched_ranks.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/parameter_files.hpp"
#include "belay/train/phase_residency.hpp"
#include "belay/train/phase_switch.hpp"
#include "belay/train/rank_rehearsal.hpp"
#include "belay/train/run.hpp"
#include "belay/train/safetensors/file.hpp"
#include "belay/train/safetensors/file_agreement.hpp"
#include "belay/train/safetensors/folder.hpp"
#include "belay/train/safetensors/header.hpp"
#include "belay/train/safetensors/reader.hpp"
#include "belay/train/safetensors/writer.hpp"
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
extern template class tier_file<>;
extern template class streamed_file<>;
extern template class copy_stream<host_stream>;
extern template void expect_kept_of<host_engine>(const host_engine&, const invocation&, const invocation_memory&,
                                                 const output_bytes&);
extern template class offloaded_activations<host_engine>;
extern template offloaded_activations<host_engine>::offloaded_activations(run&, tier, const file_memory&, where);
extern template class phase_residency<run>;
extern template class symmetric_heap<group>;
extern template std::string rank_comparison::text<group>(const group&) const;
extern template std::string rank_comparison::ranks<group>(const group&) const;
extern template class parameter_base<float>;
extern template class parameter_base<double>;
extern template class parameter_base<bf16>;
extern template class parameter<float>;
extern template class parameter<double>;
extern template class parameter<bf16>;
extern template class parameter_store<run, precision<float>>;
extern template class parameter_store<run, precision<double>>;
extern template class parameter_store<run, precision<bf16>>;
extern template class phase_switch<run, host_store<float>>;
extern template class phase_switch<run, host_store<double>>;
extern template class phase_switch<run, host_store<bf16>>;
extern template void phase_switch<run, host_store<float>>::moves(phase_residency<run>&);
extern template void phase_switch<run, host_store<double>>::moves(phase_residency<run>&);
extern template void phase_switch<run, host_store<bf16>>::moves(phase_residency<run>&);
extern template phase_residency<run>::phase_residency(run&, const residency_memory&, host_store<float>&);
extern template phase_residency<run>::phase_residency(run&, const residency_memory&, host_store<double>&);
extern template phase_residency<run>::phase_residency(run&, const residency_memory&, host_store<bf16>&);
extern template class adamw<float, group, host_kit<>>;
extern template class adamw<double, group, host_kit<>>;
extern template class adamw<bf16, group, host_kit<>>;
extern template adamw<float, group, host_kit<>>::adamw(host_store<float>&, adamw_settings, const optimizer_memory&,
                                                       where);
extern template adamw<double, group, host_kit<>>::adamw(host_store<double>&, adamw_settings, const optimizer_memory&,
                                                        where);
extern template adamw<bf16, group, host_kit<>>::adamw(host_store<bf16>&, adamw_settings, const optimizer_memory&,
                                                      where);
extern template class safetensors::basic_file<posix_files>;
extern template class safetensors::basic_reader<posix_files>;
extern template class safetensors::basic_folder<posix_files>;
extern template class safetensors::basic_writer<posix_files>;
extern template class checkpoint_folder<posix_files>;
extern template class checkpoint_writer<posix_files>;
extern template class checkpoint_reader<posix_files>;
extern template class added_state<posix_files>;
extern template class checkpoints<run>;
extern template void safetensors::basic_folder<posix_files>::read_converted(std::string_view, std::uint64_t,
                                                                            std::span<float>, where) const;
extern template class added_values<posix_files, host_store<float>>;
extern template class added_optimizer<posix_files, host_store<float>, host_adamw<float>>;
extern template void checkpoints<run>::add(host_store<float>&, host_adamw<float>&, where);
extern template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<float>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<float>)>);
extern template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<const float>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<const float>)>);
extern template void each_written_of(const mesh&, const parameter_base<float>&, std::size_t,
                                     function_ref<void(std::size_t, std::span<const float>)>);
extern template void add_needed_tensors(const parameter_base<float>&, std::span<const safetensors::declaration>,
                                        std::vector<std::string>&);
extern template void fill_parameter(parameter_base<float>&, std::span<const safetensors::declaration>,
                                    const safetensors::folder&, where);
extern template void safetensors::basic_folder<posix_files>::read_converted(std::string_view, std::uint64_t,
                                                                            std::span<double>, where) const;
extern template class added_values<posix_files, host_store<double>>;
extern template class added_optimizer<posix_files, host_store<double>, host_adamw<double>>;
extern template void checkpoints<run>::add(host_store<double>&, host_adamw<double>&, where);
extern template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<double>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<double>)>);
extern template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<const double>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<const double>)>);
extern template void each_written_of(const mesh&, const parameter_base<double>&, std::size_t,
                                     function_ref<void(std::size_t, std::span<const double>)>);
extern template void add_needed_tensors(const parameter_base<double>&, std::span<const safetensors::declaration>,
                                        std::vector<std::string>&);
extern template void fill_parameter(parameter_base<double>&, std::span<const safetensors::declaration>,
                                    const safetensors::folder&, where);
extern template void safetensors::basic_folder<posix_files>::read_converted(std::string_view, std::uint64_t,
                                                                            std::span<bf16>, where) const;
extern template class added_values<posix_files, host_store<bf16>>;
extern template class added_optimizer<posix_files, host_store<bf16>, host_adamw<bf16>>;
extern template void checkpoints<run>::add(host_store<bf16>&, host_adamw<bf16>&, where);
extern template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<bf16>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<bf16>)>);
extern template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<const bf16>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<const bf16>)>);
extern template void each_written_of(const mesh&, const parameter_base<bf16>&, std::size_t,
                                     function_ref<void(std::size_t, std::span<const bf16>)>);
extern template void add_needed_tensors(const parameter_base<bf16>&, std::span<const safetensors::declaration>,
                                        std::vector<std::string>&);
extern template void fill_parameter(parameter_base<bf16>&, std::span<const safetensors::declaration>,
                                    const safetensors::folder&, where);
#endif

}  // namespace belay::inline BELAY_ABI
