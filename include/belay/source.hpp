// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Separate compilation. Every source of a program is compiled with BELAY_SEPARATE_COMPILATION, and one of them includes
// this header: it defines what the headers of core, device, comm and backend/host then only declare. The CMake target
// belay::belay does both. BELAY_CHECKS must be the same in all of them; a mixture does not link.
#pragma once

#if !defined(BELAY_SEPARATE_COMPILATION)
#error \
    "belay/source.hpp is for programs that are compiled with -DBELAY_SEPARATE_COMPILATION: define it \
for every source of the program, or do not include this header"
#endif

#include "belay/backend/host/bootstrap/bootstrap_file.ipp"
#include "belay/backend/host/bootstrap/bootstrap_socket.ipp"
#include "belay/backend/host/bootstrap/client.ipp"
#include "belay/backend/host/bootstrap/coordinator.ipp"
#include "belay/backend/host/bootstrap/handshake.ipp"
#include "belay/backend/host/bootstrap/messages.ipp"
#include "belay/backend/host/bootstrap/private_directory.ipp"
#include "belay/backend/host/bootstrap/rank_record.ipp"
#include "belay/backend/host/bootstrap/run_rank.ipp"
#include "belay/backend/host/bootstrap/stale_files.ipp"
#include "belay/backend/host/bootstrap/world_monitor.ipp"
#include "belay/backend/host/collectives/all_gather.ipp"
#include "belay/backend/host/collectives/all_reduce.ipp"
#include "belay/backend/host/collectives/all_to_all.ipp"
#include "belay/backend/host/collectives/broadcast.ipp"
#include "belay/backend/host/collectives/call.ipp"
#include "belay/backend/host/collectives/gather.ipp"
#include "belay/backend/host/collectives/reduce.ipp"
#include "belay/backend/host/collectives/reduce_scatter.ipp"
#include "belay/backend/host/collectives/reduction_kernel.ipp"
#include "belay/backend/host/collectives/scatter.ipp"
#include "belay/backend/host/copy/calibration.ipp"
#include "belay/backend/host/failure/flight_dump.ipp"
#include "belay/backend/host/failure/wait_diagnosis.ipp"
#include "belay/backend/host/failure/watched_process.ipp"
#include "belay/backend/host/failure/world_status.ipp"
#include "belay/backend/host/group.ipp"
#include "belay/backend/host/launched.ipp"
#include "belay/backend/host/membership/process_membership.ipp"
#include "belay/backend/host/membership/thread_membership.ipp"
#include "belay/backend/host/memory/address_map.ipp"
#include "belay/backend/host/memory/control_block.ipp"
#include "belay/backend/host/memory/memory_segment.ipp"
#include "belay/backend/host/memory/region_store.ipp"
#include "belay/backend/host/options.ipp"
#include "belay/backend/host/p2p/p2p_transport.ipp"
#include "belay/backend/host/processes.ipp"
#include "belay/backend/host/rendezvous/collective_endpoint.ipp"
#include "belay/backend/host/rendezvous/group_directory.ipp"
#include "belay/backend/host/rendezvous/lane_endpoint.ipp"
#include "belay/backend/host/tuning/explain.ipp"
#include "belay/backend/host/world.ipp"
#include "belay/comm/call_arguments.ipp"
#include "belay/comm/call_mismatch.ipp"
#include "belay/comm/checked_timeout.ipp"
#include "belay/comm/event_count.ipp"
#include "belay/comm/fingerprint.ipp"
#include "belay/comm/flight_diagnosis.ipp"
#include "belay/comm/flight_file.ipp"
#include "belay/comm/flight_recorder.ipp"
#include "belay/comm/launcher.ipp"
#include "belay/comm/mesh.ipp"
#include "belay/comm/op_call.ipp"
#include "belay/comm/ranks_text.ipp"
#include "belay/comm/signal_name.ipp"
#include "belay/comm/single_rank.ipp"
#include "belay/comm/stalled_operations.ipp"
#include "belay/comm/symmetric_messages.ipp"
#include "belay/comm/symmetric_region.ipp"
#include "belay/core/checked_size.ipp"
#include "belay/core/copy.ipp"
#include "belay/core/environment.ipp"
#include "belay/core/error.ipp"
#include "belay/core/missing_folder.ipp"
#include "belay/core/own_process.ipp"
#include "belay/core/printable.ipp"
#include "belay/core/process_identity.ipp"
#include "belay/core/resident_memory.ipp"
#include "belay/core/unique_fd.ipp"
#include "belay/core/where.ipp"
#include "belay/device/available_memory.ipp"
#include "belay/device/queue_stream.ipp"
#include "belay/device/stream_arbiter.ipp"

namespace belay::inline BELAY_ABI {

/// A program of this level of checking asks the linker for it.
const char no_core_of_the_same_BELAY_CHECKS_is_linked = 0;

}  // namespace belay::inline BELAY_ABI
