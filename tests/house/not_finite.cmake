# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Puts a gradient that is not a number into one step of an example: the step must be refused, not applied, and a loop
# that does not ask for refusals must end with it.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
file(REMOVE_RECURSE "${work_dir}")
file(READ "${example}" text)
# The third gradient of a loss that a thread computes; before a run the body is rehearsed once for each of two ranks, on
# one thread.
string(REGEX REPLACE "(auto \\[loss, ([a-z]+)\\] = [^\n]*\n)"
  "\\1  if (thread_local int calls = 0; ++calls == 3) \\2.values().data()[0] = __builtin_nanf(\"\");\n"
  poisoned "${text}")
if(poisoned STREQUAL text)
  message(FATAL_ERROR "${example} has no line with a loss and its gradient")
endif()
file(WRITE "${work_dir}/poisoned.cpp" "${poisoned}")
separate_arguments(options UNIX_COMMAND "${flags}")
if(core)  # of the build that this is a test of
  list(APPEND options -DBELAY_SEPARATE_COMPILATION -DBELAY_CHECKS=${checks})
endif()
execute_process(COMMAND ${gcc} -std=c++20 -O0 -pthread ${options} "-I${source_dir}/include" "-I${source_dir}/examples"
    "-DBELAY_SOURCE_DIR=\"${source_dir}\"" -o "${work_dir}/poisoned" "${work_dir}/poisoned.cpp" ${core}
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${work_dir}/poisoned" ${steps} OUTPUT_VARIABLE output ERROR_VARIABLE said)
message("${output}${said}")
if(NOT said MATCHES "gradients are not finite")
  message(FATAL_ERROR "a gradient that is not a number was applied")
endif()
string(REGEX MATCHALL "loss +[^ ]+" losses "${output}")
foreach(loss IN LISTS losses)
  if(NOT loss MATCHES "^loss +[0-9.]+$")
    message(FATAL_ERROR "a loss is not a number")
  endif()
endforeach()
