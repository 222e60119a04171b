# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Puts a gradient that is not a number into one step of an example: the step must be refused and not applied, so that
# the losses after it are numbers.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
file(REMOVE_RECURSE "${work_dir}")
file(READ "${example}" text)
string(REGEX REPLACE "([a-z_]+)\\.contributed\\("
  "[\&] { thread_local int calls = 0; if (++calls == 3) \\1.parameter(0).gradient()[0] = __builtin_nanf(\"\"); }(), \\1.contributed("
  poisoned "${text}")
if(poisoned STREQUAL text)
  message(FATAL_ERROR "${example} has no line that contributes")
endif()
file(WRITE "${work_dir}/poisoned.cpp" "${poisoned}")
execute_process(COMMAND ${gcc} -std=c++20 -O1 -pthread "-I${source_dir}/include" "-I${source_dir}/examples"
    "-DBELAY_SOURCE_DIR=\"${source_dir}\"" -o "${work_dir}/poisoned" "${work_dir}/poisoned.cpp"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${work_dir}/poisoned" ${steps} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
message("${output}")
string(REGEX MATCHALL "loss +[^ ]+" losses "${output}")
list(GET losses -1 last)
if(NOT last MATCHES "^loss +[0-9.]+$")
  message(FATAL_ERROR "a gradient that is not a number was applied")
endif()
