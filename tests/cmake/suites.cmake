# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# A program has the cases of several sources, each of which is a test of its own: it runs its own cases, and those of the
# suites of tests/conformance that it includes.

# belay_cases_of(<result> <number of sources in the program> <source>): the flag of doctest that chooses them.
function(belay_cases_of result count source)
  set(files "*/${source}")
  if(source MATCHES "^conformance/")
    file(STRINGS ${source} lines REGEX "^#include \"conformance/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*\"(.*)\"" ",*/\\1" included "${line}")
      string(APPEND files "${included}")
    endforeach()
  endif()
  if(count EQUAL 1)
    set(files "*")
  endif()
  set(${result} "--source-file=${files}" PARENT_SCOPE)
endfunction()

# One that runs no case has failed.
function(belay_runs_cases name)
  set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "test cases: +0 ")
endfunction()

# Suites of the host backend, whose templates all kinds of rank share: one test for each kind.
function(belay_add_suites_of_host target)
  foreach(source IN LISTS ARGN)
    string(REGEX REPLACE "\\.cpp$" "" name "${source}")
    list(LENGTH ARGN count)
    belay_cases_of(cases ${count} ${source})
    set(kinds threads processes)
    if(name MATCHES "/(communicator|first_calls)_host$")
      list(APPEND kinds late_processes)  # each rank in turn joins last
    endif()
    foreach(kind IN LISTS kinds)
      if(NOT "${name}_${kind}" MATCHES "${not_among}")
        belay_add_test(${name}_${kind} TARGETS ${target} COMMAND ${target} --test-case=*host_${kind}* ${cases})
        belay_runs_cases(${name}_${kind})
      endif()
    endforeach()
  endforeach()
endfunction()

# What mpirun launches; two suites also where a wire between two network namespaces is the ranks' only way.
function(belay_add_suites_of_mpi target)
  foreach(source IN LISTS ARGN)
    string(REGEX REPLACE "\\.cpp$" "" name "${source}")
    list(LENGTH ARGN count)
    belay_cases_of(cases ${count} ${source})
    belay_add_test(${name} TARGETS ${target}
      COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 4 $<TARGET_FILE:${target}> ${cases})
    belay_uses_mpirun(${name})
    belay_runs_cases(${name})
    set_property(GLOBAL APPEND PROPERTY belay_across_namespaces_${name} ${target} "${cases}")
  endforeach()
endfunction()
function(belay_add_suites_across_namespaces)
  set(targets mpi_victim)
  set(programs "")
  foreach(name IN ITEMS conformance/communicator_mpi conformance/experts_mpi)
    get_property(program GLOBAL PROPERTY belay_across_namespaces_${name})
    list(GET program 0 target)
    list(GET program 1 cases)
    list(APPEND targets ${target})
    list(APPEND programs $<TARGET_FILE:${target}> "${cases}")
  endforeach()
  belay_add_test(conformance/mpi_across_namespaces TARGETS ${targets}
    COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/conformance/mpi_across_namespaces.sh ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:mpi_victim>
      ${programs})
  belay_uses_mpirun(conformance/mpi_across_namespaces)
endfunction()
