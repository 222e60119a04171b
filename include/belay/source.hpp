// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Separate compilation. Every source of a program is compiled with BELAY_SEPARATE_COMPILATION, and one of them includes
// this header: it defines what the headers then only declare, but for backends over a library of their own. The CMake
// target belay::belay does both. BELAY_CHECKS must be the same in all of them; a mixture does not link.
#pragma once

#if !defined(BELAY_SEPARATE_COMPILATION)
#error \
    "belay/source.hpp is for programs that are compiled with -DBELAY_SEPARATE_COMPILATION: define it \
for every source of the program, or do not include this header"
#endif

// Core, devices and communication.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 1
#include "belay/comm/abort_cause.ipp"
#include "belay/comm/axis.ipp"
#include "belay/comm/basic_group.ipp"
#include "belay/comm/call_arguments.ipp"
#include "belay/comm/call_guard.ipp"
#include "belay/comm/call_mismatch.ipp"
#include "belay/comm/fingerprint.ipp"
#include "belay/comm/flight_file.ipp"
#include "belay/comm/flight_recorder.ipp"
#include "belay/comm/group.ipp"
#include "belay/comm/launcher.ipp"
#include "belay/comm/mesh.ipp"
#include "belay/comm/op_call.ipp"
#include "belay/comm/operation_spans.ipp"
#include "belay/comm/rehearsal.ipp"
#include "belay/comm/symmetric_region.ipp"
#include "belay/core/box.ipp"
#include "belay/core/copy.ipp"
#include "belay/core/error.ipp"
#include "belay/core/fiber.ipp"
#include "belay/core/hash.ipp"
#include "belay/core/ledger.ipp"
#include "belay/core/printable.ipp"
#include "belay/core/process.ipp"
#include "belay/core/unique_fd.ipp"
#include "belay/core/where.ipp"
#include "belay/device/available_memory.ipp"
#include "belay/device/findings.ipp"
#include "belay/device/lease_owners.ipp"
#include "belay/device/offset_allocator.ipp"
#include "belay/device/queue_stream.ipp"
#include "belay/device/stored_bytes.ipp"
#include "belay/device/stream_arbiter.ipp"
#include "belay/device/tier_file/error.ipp"
#include "belay/device/tier_file/transfer.ipp"

namespace belay::inline BELAY_ABI {

/// A program of this level of checking asks the linker for it.
const char no_core_of_the_same_BELAY_CHECKS_is_linked = 0;

}  // namespace belay::inline BELAY_ABI
#endif

// Ranks on a host: how they start, find each other, and fail.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 2
#include "belay/backend/host/bootstrap/bootstrap_socket.ipp"
#include "belay/backend/host/bootstrap/client.ipp"
#include "belay/backend/host/bootstrap/coordinator.ipp"
#include "belay/backend/host/bootstrap/messages.ipp"
#include "belay/backend/host/bootstrap/private_directory.ipp"
#include "belay/backend/host/bootstrap/world_monitor.ipp"
#include "belay/backend/host/failure/flight_dump.ipp"
#include "belay/backend/host/failure/wait_diagnosis.ipp"
#include "belay/backend/host/failure/watched_process.ipp"
#include "belay/backend/host/failure/world_status.ipp"
#include "belay/backend/host/launched.ipp"
#include "belay/backend/host/membership/process_membership.ipp"
#include "belay/backend/host/membership/thread_membership.ipp"
#include "belay/backend/host/processes.ipp"
#include "belay/backend/host/rank.ipp"
#endif

// Their memory and collectives.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 3
#include "belay/backend/host/collectives/all_gather.ipp"
#include "belay/backend/host/collectives/all_reduce.ipp"
#include "belay/backend/host/collectives/all_to_all.ipp"
#include "belay/backend/host/collectives/call.ipp"
#include "belay/backend/host/collectives/reduce_scatter.ipp"
#include "belay/backend/host/collectives/rooted.ipp"
#include "belay/backend/host/copy/calibration.ipp"
#include "belay/backend/host/memory/address_map.ipp"
#include "belay/backend/host/memory/control_block.ipp"
#include "belay/backend/host/memory/memory_segment.ipp"
#include "belay/backend/host/options.ipp"
#include "belay/backend/host/p2p/p2p_transport.ipp"
#include "belay/backend/host/rendezvous/collective_endpoint.ipp"
#include "belay/backend/host/rendezvous/group_state.ipp"
#include "belay/backend/host/tuning/online_tuner.ipp"
#include "belay/backend/host/world.ipp"

namespace belay::inline BELAY_ABI {

template class async_stream<host::world_status>;

}  // namespace belay::inline BELAY_ABI
#endif

// Buckets, experts, schedules and pipelines.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 4
#include "belay/parallel/bucket/layout.ipp"
#include "belay/parallel/experts/core.ipp"
#include "belay/parallel/experts/layout.ipp"
#include "belay/parallel/experts/statistics.ipp"
#include "belay/parallel/pipeline/runner.ipp"
#include "belay/parallel/proof.ipp"
#include "belay/parallel/schedule/catalogue.ipp"
#include "belay/parallel/schedule/csv.ipp"
#include "belay/parallel/schedule/pairs.ipp"
#include "belay/parallel/schedule/planner.ipp"
#include "belay/parallel/schedule/timeline.ipp"
#include "belay/parallel/vote.ipp"
#endif

// Steps, runs and rehearsals on ranks of the host.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 5
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class engine<host_pages, host_kit<>>;
template class step_core<host_engine>;
template void frame<host_engine>::run_notes(weight_note_list&);
template weight_note& frame<host_engine>::note_for_work(weight_note&);
template void frame<host_engine>::hold_reads(weight_note&, std::span<const noted_bytes>);
template struct handle_calls<host_engine>;
template class tier_file<>;
template class streamed_file<>;
template class copy_stream<host_stream>;
template void expect_kept_of<host_engine>(const host_engine&, const invocation&, const invocation_memory&,
                                          const output_bytes&);
template class offloaded_activations<host_engine>;
template offloaded_activations<host_engine>::offloaded_activations(run&, tier, const file_memory&, where);
template class phase_residency<run>;
template class symmetric_heap<group>;
template std::string rank_comparison::text<group>(const group&) const;
template std::string rank_comparison::ranks<group>(const group&) const;
template class run_of<host_engine>;
template class rank_rehearsal<host_engine>;
template rehearsal_result rehearse_on<host_engine>(int, function_ref<void(rank&, run&)>, computes_on,
                                                   const group_traits&, fault_explanation, where);
template void launch_rank<host_engine, host_engine>(launch_under_way&, rank&, const run_parts<host_engine>&,
                                                    body_call<host_engine>, body_call<host_engine>);

}  // namespace belay::inline BELAY_ABI
#endif

// Stores of parameters of type float.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 6
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class parameter_store<run, precision<float>>;

}  // namespace belay::inline BELAY_ABI
#endif

// The parameters, AdamW over them, and their phases.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 7
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class parameter_base<float>;
template class parameter<float>;
template class adamw<float, group, host_kit<>>;
template adamw<float, group, host_kit<>>::adamw(host_store<float>&, adamw_settings, const optimizer_memory&, where);
template class phase_switch<run, host_store<float>>;
template void phase_switch<run, host_store<float>>::moves(phase_residency<run>&);
template phase_residency<run>::phase_residency(run&, const residency_memory&, host_store<float>&);

}  // namespace belay::inline BELAY_ABI
#endif

// Stores of parameters of type double.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 8
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class parameter_store<run, precision<double>>;

}  // namespace belay::inline BELAY_ABI
#endif

// The parameters, AdamW over them, and their phases.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 9
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class parameter_base<double>;
template class parameter<double>;
template class adamw<double, group, host_kit<>>;
template adamw<double, group, host_kit<>>::adamw(host_store<double>&, adamw_settings, const optimizer_memory&, where);
template class phase_switch<run, host_store<double>>;
template void phase_switch<run, host_store<double>>::moves(phase_residency<run>&);
template phase_residency<run>::phase_residency(run&, const residency_memory&, host_store<double>&);

}  // namespace belay::inline BELAY_ABI
#endif

// Stores of parameters of type bf16.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 10
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class parameter_store<run, precision<bf16>>;

}  // namespace belay::inline BELAY_ABI
#endif

// The parameters, AdamW over them, and their phases.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 11
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class parameter_base<bf16>;
template class parameter<bf16>;
template class adamw<bf16, group, host_kit<>>;
template adamw<bf16, group, host_kit<>>::adamw(host_store<bf16>&, adamw_settings, const optimizer_memory&, where);
template class phase_switch<run, host_store<bf16>>;
template void phase_switch<run, host_store<bf16>>::moves(phase_residency<run>&);
template phase_residency<run>::phase_residency(run&, const residency_memory&, host_store<bf16>&);

}  // namespace belay::inline BELAY_ABI
#endif

// Models in files.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 12
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class safetensors::basic_file<posix_files>;
template class safetensors::basic_reader<posix_files>;
template class safetensors::basic_folder<posix_files>;
template class safetensors::basic_writer<posix_files>;
template void safetensors::basic_folder<posix_files>::read_converted(std::string_view, std::uint64_t, std::span<float>,
                                                                     where) const;
template void each_tensor_part(std::span<const safetensors::declaration>, std::size_t, std::span<float>,
                               function_ref<void(const safetensors::declaration&, std::size_t, std::span<float>)>);
template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<const float>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<const float>)>);
template void each_written_of(const mesh&, const parameter_base<float>&, std::size_t,
                              function_ref<void(std::size_t, std::span<const float>)>);
template void add_needed_tensors(const parameter_base<float>&, std::span<const safetensors::declaration>,
                                 std::vector<std::string>&);
template void fill_parameter(parameter_base<float>&, std::span<const safetensors::declaration>,
                             const safetensors::folder&, where);
template void safetensors::basic_folder<posix_files>::read_converted(std::string_view, std::uint64_t, std::span<double>,
                                                                     where) const;
template void each_tensor_part(std::span<const safetensors::declaration>, std::size_t, std::span<double>,
                               function_ref<void(const safetensors::declaration&, std::size_t, std::span<double>)>);
template void each_tensor_part(
    std::span<const safetensors::declaration>, std::size_t, std::span<const double>,
    function_ref<void(const safetensors::declaration&, std::size_t, std::span<const double>)>);
template void each_written_of(const mesh&, const parameter_base<double>&, std::size_t,
                              function_ref<void(std::size_t, std::span<const double>)>);
template void add_needed_tensors(const parameter_base<double>&, std::span<const safetensors::declaration>,
                                 std::vector<std::string>&);
template void fill_parameter(parameter_base<double>&, std::span<const safetensors::declaration>,
                             const safetensors::folder&, where);
template void safetensors::basic_folder<posix_files>::read_converted(std::string_view, std::uint64_t, std::span<bf16>,
                                                                     where) const;
template void each_tensor_part(std::span<const safetensors::declaration>, std::size_t, std::span<bf16>,
                               function_ref<void(const safetensors::declaration&, std::size_t, std::span<bf16>)>);
template void each_tensor_part(std::span<const safetensors::declaration>, std::size_t, std::span<const bf16>,
                               function_ref<void(const safetensors::declaration&, std::size_t, std::span<const bf16>)>);
template void each_written_of(const mesh&, const parameter_base<bf16>&, std::size_t,
                              function_ref<void(std::size_t, std::span<const bf16>)>);
template void add_needed_tensors(const parameter_base<bf16>&, std::span<const safetensors::declaration>,
                                 std::vector<std::string>&);
template void fill_parameter(parameter_base<bf16>&, std::span<const safetensors::declaration>,
                             const safetensors::folder&, where);

}  // namespace belay::inline BELAY_ABI
#endif

// Checkpoints.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 13
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class checkpoint_folder<posix_files>;
template class checkpoint_writer<posix_files>;
template class checkpoint_reader<posix_files>;
template class added_state<posix_files>;
template class checkpoints<run>;

}  // namespace belay::inline BELAY_ABI
#endif

// Stores and optimizers in checkpoints.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 14
#include "belay/train/host_types.hpp"

namespace belay::inline BELAY_ABI {

template class added_values<posix_files, host_store<float>>;
template class added_optimizer<posix_files, host_store<float>, host_adamw<float>>;
template void checkpoints<run>::add(host_store<float>&, host_adamw<float>&, where);
template class added_values<posix_files, host_store<double>>;
template class added_optimizer<posix_files, host_store<double>, host_adamw<double>>;
template void checkpoints<run>::add(host_store<double>&, host_adamw<double>&, where);
template class added_values<posix_files, host_store<bf16>>;
template class added_optimizer<posix_files, host_store<bf16>, host_adamw<bf16>>;
template void checkpoints<run>::add(host_store<bf16>&, host_adamw<bf16>&, where);

}  // namespace belay::inline BELAY_ABI
#endif

// Steps and launches, reports, files and checkpoints.
#if !defined(BELAY_SOURCE_PART) || BELAY_SOURCE_PART == 15
#include "belay/report/event_file.ipp"
#include "belay/report/output.ipp"
#include "belay/report/step_line.ipp"
#include "belay/report/text_buffer.ipp"
#include "belay/report/trace.ipp"
#include "belay/step/arithmetic.ipp"
#include "belay/step/flow_pair.ipp"
#include "belay/step/frame.ipp"
#include "belay/step/owed.ipp"
#include "belay/train/checkpoint/checkpoint_folder.ipp"
#include "belay/train/checkpoint/checkpoint_layout.ipp"
#include "belay/train/checkpoint/checkpoint_writer.ipp"
#include "belay/train/checkpoint/manifest.ipp"
#include "belay/train/launch.ipp"
#include "belay/train/launch_plan.ipp"
#include "belay/train/norm_table.ipp"
#include "belay/train/plan.ipp"
#include "belay/train/plan_table.ipp"
#include "belay/train/run_memory.ipp"
#include "belay/train/safetensors/file_agreement.ipp"
#include "belay/train/safetensors/folder.ipp"
#include "belay/train/safetensors/header.ipp"
#include "belay/train/safetensors/scanner.ipp"
#include "belay/train/stage_names.ipp"
#include "belay/train/stop_request.ipp"
#endif
