# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What ends in _mpi is launched by mpirun, four ranks at most; there is no sanitizer for the library below it.
set(with_mpi FALSE)
if(NOT TARGET belay::mpi OR NOT MPIEXEC_EXECUTABLE)
  message(STATUS "MPI: not found; the tests of the MPI backend are skipped")
elseif("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_DEBUG}" MATCHES "-fsanitize")
  message(STATUS "MPI: the tests of the MPI backend are skipped under a sanitizer")
else()
  set(with_mpi TRUE)
  add_library(belay_mpi_test_main OBJECT main_mpi.cpp)
  target_link_libraries(belay_mpi_test_main PUBLIC belay_test_doctest belay::mpi ${belay_linked})
  add_executable(mpi_victim failures/support/mpi_victim.cpp)
  target_include_directories(mpi_victim PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  target_link_libraries(mpi_victim PRIVATE belay::mpi ${belay_linked} belay_warnings)
endif()
# For a test that is launched by mpirun, or launches it.
function(belay_uses_mpirun name)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1)
  set_tests_properties(${name} PROPERTIES PROCESSORS 2 TIMEOUT 120)
endfunction()
