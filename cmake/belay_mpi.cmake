# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay::mpi, where CMake finds MPI: what a program links that includes belay/backend/mpi.hpp. It has a core, compiled once
# in this build as that of belay::belay is. Serves both this project and those who find it installed.
#
# belay_mpi_core(NAME CORE)
#   makes such a core over CORE, a target of belay_core(), with its level of checks and its options: link NAME in the
#   place of belay::mpi.
function(belay_mpi_core name core)
  belay_compiled_parts(${name} belay/backend/mpi/source.hpp 1 cpp)
  target_link_libraries(${name} PUBLIC ${core} MPI::MPI_CXX)
  target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:${core},COMPILE_OPTIONS>)
endfunction()

if(NOT TARGET belay::mpi)
  set(MPI_CXX_SKIP_MPICXX TRUE)  # the C++ bindings were removed from the standard long ago
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    add_library(belay_mpi INTERFACE)
    add_library(belay::mpi ALIAS belay_mpi)
    belay_mpi_core(belay_mpi_core belay::belay)
    target_link_libraries(belay_mpi INTERFACE belay_mpi_core)
  endif()
endif()
