// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The MPI backend: ranks are the processes that mpirun starts, on one machine or on many. Needs MPI (the CMake
// target belay::mpi), so no other header includes it.
#pragma once

#include "belay/backend/mpi/rank.hpp"   // IWYU pragma: export
#include "belay/backend/mpi/world.hpp"  // IWYU pragma: export
#include "belay/comm/collective.hpp"    // IWYU pragma: export
