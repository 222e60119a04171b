// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Separate compilation of the MPI backend: one source of a program that is compiled with BELAY_SEPARATE_COMPILATION
// includes this header beside belay/source.hpp. The CMake target belay::mpi does.
#pragma once

#include "belay/backend/mpi.hpp"

#if !defined(BELAY_SEPARATE_COMPILATION)
#error \
    "belay/backend/mpi/source.hpp is for programs that are compiled with -DBELAY_SEPARATE_COMPILATION: define it \
for every source of the program, or do not include this header"
#endif

#include "belay/backend/mpi/collectives/call.ipp"
#include "belay/backend/mpi/progress/mpi_progress.ipp"
#include "belay/backend/mpi/world.ipp"

namespace belay::inline BELAY_ABI {

template class async_stream<mpi::mpi_progress>;
template class basic_group<mpi::group, mpi::collectives>;
template class typed_group<mpi::group>;
template class typed_rank<mpi::rank>;

}  // namespace belay::inline BELAY_ABI
