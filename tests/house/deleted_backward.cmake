# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Deletes each `std::move(handle).backward(...)` of an example in turn; what follows gets the gradient that the
# deleted line was given instead of the one it would have made. The check that a g++ build runs must fail, name the
# handle, and say on which line it was opened.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
file(REMOVE_RECURSE "${work_dir}")
file(WRITE "${work_dir}/flags.rsp" "\"-I${source_dir}/include\"\n\"-I${source_dir}/examples\"\n'-DBELAY_SOURCE_DIR=\"${source_dir}\"'\n")
list(GET clang 0 clangxx)
cmake_path(GET example FILENAME name)
# What the example includes is the same in all of its forms: read once.
file(STRINGS "${example}" includes REGEX "^#include ")
list(JOIN includes "\n" text)
file(WRITE "${work_dir}/includes.hpp" "${text}\n")
execute_process(COMMAND ${clangxx} -std=c++20 "-I${source_dir}/include" "-I${source_dir}/examples"
    -x c++-header "${work_dir}/includes.hpp" -o "${work_dir}/includes.pch"
  COMMAND_ERROR_IS_FATAL ANY)
file(APPEND "${work_dir}/flags.rsp" "\"-include-pch\"\n\"${work_dir}/includes.pch\"\n")

# Sets `failed` and `output` to what belay_check_backward says about <file>.
function(check file)
  execute_process(COMMAND ${CMAKE_COMMAND} "-Dcompiler=${clangxx}" -Dstandard=20 "-Dresponse=${work_dir}/flags.rsp"
      "-Dsource=${file}" "-Dname=${name}" "-Dstamp=${work_dir}/stamp" -P "${source_dir}/cmake/belay_check_backward_run.cmake"
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(failed "${failed}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

check("${example}")
if(failed OR output MATCHES "cannot parse")
  message("${output}")
  message(FATAL_ERROR "${name} as it is should pass")
endif()

# Lines as a list: brackets and semicolons are spelt otherwise meanwhile.
file(READ "${example}" text)
string(REPLACE "[" "@open@" text "${text}")
string(REPLACE "]" "@close@" text "${text}")
string(REPLACE ";" "@semicolon@" text "${text}")
string(REPLACE "\\\n" "@backslash@\n" text "${text}")
string(REPLACE "\n" ";" lines "${text}")

set(number 0)
set(deletions 0)
foreach(line IN LISTS lines)
  math(EXPR number "${number} + 1")
  if(NOT line MATCHES "std::move\\(([a-z0-9_]+)\\)\\.backward\\((.*)\\)@semicolon@ *(//.*)?$")
    continue()
  endif()
  math(EXPR deletions "${deletions} + 1")
  set(handle "${CMAKE_MATCH_1}")
  set(given "${CMAKE_MATCH_2}")
  set(made "")
  if(line MATCHES "([a-z0-9_]+) += +std::move")
    set(made "${CMAKE_MATCH_1}")
  endif()

  set(mutated "")
  set(opened 0)
  set(at 0)
  foreach(other IN LISTS lines)
    math(EXPR at "${at} + 1")
    if(at EQUAL number)
      set(other "")
    elseif(at LESS number AND other MATCHES "[ &]${handle} *[={(]")
      set(opened ${at})
    elseif(at GREATER number AND NOT made STREQUAL "")
      string(REGEX REPLACE "(^|[^A-Za-z0-9_.])${made}([^A-Za-z0-9_]|$)" "\\1${given}\\2" other "${other}")
    endif()
    string(APPEND mutated "${other}\n")
  endforeach()
  string(REPLACE "@open@" "[" mutated "${mutated}")
  string(REPLACE "@close@" "]" mutated "${mutated}")
  string(REPLACE "@semicolon@" ";" mutated "${mutated}")
  string(REPLACE "@backslash@" "\\" mutated "${mutated}")
  file(WRITE "${work_dir}/${name}" "${mutated}")

  check("${work_dir}/${name}")
  if(NOT failed OR NOT output MATCHES "error: [^\n]*'${handle}'[^\n]*-Wconsumed" OR NOT output MATCHES "${name}:${opened}: note: '${handle}'")
    message("${output}")
    message(SEND_ERROR "without line ${number} the build should name '${handle}', opened at line ${opened}")
  endif()
endforeach()
message("${deletions} backwards deleted in turn")
if(deletions EQUAL 0)
  message(FATAL_ERROR "${name} has no line with a backward to delete")
endif()
