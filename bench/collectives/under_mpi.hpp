// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// --as mpi: this process is a rank of belay::mpi.
#pragma once

#include <cstddef>

#include "collectives/options.hpp"

namespace bench {

/// Runs everything as this process's rank; returns the wrong elements of all ranks.
std::size_t measure_under_mpi(const options& what);

}  // namespace bench
