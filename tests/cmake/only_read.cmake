# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_only_read(<target> <source>): the compiler reads the source, with the flags of the target, and makes no code. That
# it has nothing to say is a test.
function(belay_only_read target source)
  add_library(${target} OBJECT ${source})
  set_target_properties(${target} PROPERTIES RULE_LAUNCH_COMPILE "sh ${CMAKE_CURRENT_SOURCE_DIR}/cmake/only_read.sh <OBJECT>")
  string(REGEX REPLACE "^read_([a-z]+)_" "read/\\1/" name ${target})
  belay_add_test(${name} TARGETS ${target} COMMAND ${CMAKE_COMMAND} -E cat $<TARGET_OBJECTS:${target}>)
endfunction()

# belay_is_only_read(<result> <name>): whether another leg runs it, whole.
function(belay_is_only_read result name)
  file(STRINGS ${name}.cpp all_of_it REGEX "only_a_sample" LIMIT_COUNT 1)  # what sanitizers run a sample of
  set(${result} FALSE PARENT_SCOPE)
  if(BELAY_TEST_READ AND name MATCHES "${BELAY_TEST_READ}" AND NOT name MATCHES "_mpi$|/ranks_that_end$" AND NOT all_of_it)
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()
