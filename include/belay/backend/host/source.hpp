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
