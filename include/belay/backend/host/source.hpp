// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Separate compilation. Every source of a program is compiled with BELAY_SEPARATE_COMPILATION, and one of them includes
// this header: it defines what the headers of core, device, comm and backend/host then only declare. The CMake target
// belay::host_compiled does both. BELAY_CHECKS must be the same in all of them: the linker finds nothing otherwise.
#pragma once

#if !defined(BELAY_SEPARATE_COMPILATION)
#error "belay/backend/host/source.hpp is for programs that are compiled with -DBELAY_SEPARATE_COMPILATION: define it \
for every source of the program, or do not include this header"
#endif

#include "belay/backend/host/collectives/all_gather.ipp"
#include "belay/backend/host/collectives/all_reduce.ipp"
#include "belay/backend/host/collectives/all_to_all.ipp"
#include "belay/backend/host/collectives/broadcast.ipp"
#include "belay/backend/host/collectives/gather.ipp"
#include "belay/backend/host/collectives/reduce.ipp"
#include "belay/backend/host/collectives/reduce_scatter.ipp"
#include "belay/backend/host/collectives/reduction_kernel.ipp"
#include "belay/backend/host/collectives/scatter.ipp"
#include "belay/backend/host/copy/calibration.ipp"
#include "belay/backend/host/copy/copy.ipp"
#include "belay/backend/host/failure/flight_dump.ipp"
#include "belay/backend/host/failure/wait_diagnosis.ipp"
#include "belay/backend/host/failure/watched_process.ipp"
#include "belay/backend/host/failure/world_status.ipp"
#include "belay/backend/host/group.ipp"
#include "belay/backend/host/memory/address_map.ipp"
#include "belay/backend/host/memory/control_block.ipp"
#include "belay/backend/host/memory/memory_segment.ipp"
#include "belay/backend/host/memory/region_store.ipp"
#include "belay/backend/host/p2p/p2p_transport.ipp"
#include "belay/backend/host/rendezvous/collective_endpoint.ipp"
#include "belay/backend/host/rendezvous/group_directory.ipp"
#include "belay/backend/host/rendezvous/lane_endpoint.ipp"
#include "belay/backend/host/tuning/explain.ipp"
#include "belay/comm/call_arguments.ipp"
#include "belay/comm/call_mismatch.ipp"
#include "belay/comm/event_count.ipp"
#include "belay/comm/fingerprint.ipp"
#include "belay/comm/flight_diagnosis.ipp"
#include "belay/comm/flight_file.ipp"
#include "belay/comm/flight_recorder.ipp"
#include "belay/comm/launch.ipp"
#include "belay/comm/mesh.ipp"
#include "belay/comm/ranks_text.ipp"
#include "belay/comm/signal_name.ipp"
#include "belay/comm/stalled_operations.ipp"
#include "belay/comm/symmetric_messages.ipp"
#include "belay/comm/symmetric_region.ipp"
#include "belay/core/error.ipp"
#include "belay/core/own_process.ipp"
#include "belay/core/process_identity.ipp"
#include "belay/core/unique_fd.ipp"
#include "belay/device/available_memory.ipp"
#include "belay/device/queue_stream.ipp"
