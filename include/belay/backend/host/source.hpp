// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Separate compilation of the host backend. One source of a program that is compiled with BELAY_SEPARATE_COMPILATION
// includes this header and defines with it what the other sources only declare. The CMake target belay::host_compiled
// does both.
#pragma once

#include "belay/backend/host.hpp"
#include "belay/backend/host/group.ipp"
#include "belay/backend/host/processes.hpp"

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
#include "belay/backend/host/p2p/p2p_transport.ipp"
#include "belay/backend/host/rendezvous/collective_endpoint.ipp"
#include "belay/backend/host/rendezvous/group_directory.ipp"
#include "belay/backend/host/rendezvous/lane_endpoint.ipp"
#include "belay/backend/host/tuning/explain.ipp"
#include "belay/comm/call_arguments.ipp"
#include "belay/comm/call_mismatch.ipp"
#include "belay/comm/fingerprint.ipp"
