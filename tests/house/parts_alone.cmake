# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cmake -Dcommands=<compile_commands.json> ... -P parts_alone.cmake: an editor can read each .ipp by itself. It has a line
# in compile_commands.json, by which Clang parses it without a warning.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
file(STRINGS "${commands}" lines REGEX "^ *\"command\": .*\\.ipp\",?$")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^ *\"command\": \"(.*)\",?$" "\\1" line "${line}")
  separate_arguments(command UNIX_COMMAND "${line}")
  list(POP_BACK command part)
  list(POP_FRONT command)  # the compiler
  # GCC's std::stable_sort calls what it calls deprecated.
  set(command_of_${part} ${clang} ${command} -Werror -Wno-deprecated-declarations)
endforeach()

# Sets <out> to what is wrong with the file, read as the <part> of the library.
function(read_alone part file out)
  set(command ${command_of_${part}})
  list(FIND command "-o" at)
  list(REMOVE_AT command ${at})
  list(REMOVE_AT command ${at})  # its name
  list(REMOVE_ITEM command "-c")
  execute_process(COMMAND ${command} "${file}" RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  set(${out} "" PARENT_SCOPE)
  if(failed)
    set(${out} "${failed}: ${said}" PARENT_SCOPE)
  endif()
endfunction()

file(GLOB_RECURSE parts "${source_dir}/include/*.ipp")
if(NOT with_mpi)
  list(FILTER parts EXCLUDE REGEX "/backend/mpi/")  # they include mpi.h
endif()
foreach(part IN LISTS parts)
  if(NOT DEFINED command_of_${part})
    message(SEND_ERROR "${part} is not in ${commands}")
    continue()
  endif()
  read_alone("${part}" "${part}" wrong)
  if(wrong)
    message(SEND_ERROR "${part} cannot be read by itself:\n${wrong}")
  endif()
endforeach()

# The test must be able to fail: a file that uses what it does not include, and what that of its name includes again.
set(planted "${work_dir}/planted")
file(WRITE "${planted}/used.hpp" "#pragma once\ninline int used();\n#include \"used.ipp\"\n")
file(WRITE "${planted}/used.ipp" "#pragma once\n#include \"used.hpp\"\ninline int used() { return 1; }\n")
file(WRITE "${planted}/missing.ipp" "#pragma once\ninline int missing() { return used(); }\n")
list(GET parts 0 any)
foreach(name used missing)
  read_alone("${any}" "${planted}/${name}.ipp" ${name})
endforeach()
if(used OR NOT missing MATCHES "undeclared identifier 'used'")
  message(SEND_ERROR "planted: '${used}', '${missing}'")
endif()
