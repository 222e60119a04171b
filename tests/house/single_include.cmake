# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# The files in single_include are what single_include/run makes of the headers, and it makes of them what it should.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${work_dir}")
file(MAKE_DIRECTORY "${work_dir}")
set(names belay.hpp belay_host.hpp)

# Adds to <out> what of <folder> is not what <root>/single_include/run makes.
function(find_stale root folder out)
  execute_process(COMMAND bash "${root}/single_include/run" "${work_dir}/made" RESULT_VARIABLE failed ERROR_VARIABLE said)
  if(failed)
    set(${out} "${said}" PARENT_SCOPE)
    return()
  endif()
  set(found "")
  foreach(name IN LISTS names)
    execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files "${work_dir}/made/${name}" "${folder}/${name}"
      RESULT_VARIABLE differ OUTPUT_QUIET ERROR_QUIET)
    if(differ)
      list(APPEND found "single_include/${name}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

find_stale("${source_dir}" "${source_dir}/single_include" stale)
if(stale)
  list(JOIN stale " " text)
  message(SEND_ERROR "not what the headers make: ${text}\nTo make it: single_include/run     (and commit what it writes)")
endif()

# The test must be able to fail, and the script to make files of other headers: each once, in order, at its place.
set(planted "${work_dir}/planted")
file(COPY "${source_dir}/single_include/run" DESTINATION "${planted}/single_include")
function(plant header)
  file(WRITE "${planted}/include/belay/${header}" "// SPDX-License-Identifier: any\n#pragma once\n${ARGN}")
endfunction()
plant(belay.hpp "#include \"belay/a.hpp\"\n#include \"belay/b.hpp\"\n")
plant(a.hpp "#include <vector>\n\nint a;\n#if !defined(BELAY_SEPARATE_COMPILATION)\n#include \"belay/a.ipp\"\n#endif\n")
plant(a.ipp "#include \"belay/a.hpp\"\n#include \"belay/c.hpp\"\n#include <vector>\nint defined_a;\n")
plant(b.hpp "#include \"belay/c.hpp\"\n#if defined(OTHER)\n#include <vector>\n#include \"belay/c.hpp\"\n#else\nint b;\n#endif\n")
plant(c.hpp "#if defined(BELAY_SEPARATE_COMPILATION)\nint separate;\n#endif\nconst char c[] = \"[;]\\n\";\n")
plant(backend/host.hpp "#include \"belay/c.hpp\"\nint host;\n")
plant(backend/host/processes.hpp "#include \"belay/backend/host.hpp\"\nint processes;\n")
find_stale("${planted}" "${work_dir}/made" stale)
file(READ "${work_dir}/made/belay_host.hpp" text)
string(REGEX REPLACE "^.*#error[^#]*#endif\n" "" text "${text}")
string(REGEX REPLACE "\n+" "\n" text "${text}")
set(expected "
// ---- belay/belay.hpp
// ---- belay/a.hpp
#include <vector>
int a;
// ---- belay/a.ipp
// ---- belay/c.hpp
#if defined(BELAY_SEPARATE_COMPILATION)
int separate;
#endif
const char c[] = \"[;]\\n\";
int defined_a;
// ---- belay/b.hpp
#if defined(OTHER)
#include <vector>
#else
int b;
#endif
// ---- belay/backend/host.hpp
int host;
// ---- belay/backend/host/processes.hpp
int processes;
")
if(stale OR NOT text STREQUAL expected)
  message(SEND_ERROR "${stale}\nof the planted headers the script makes\n${text}")
endif()
file(MAKE_DIRECTORY "${work_dir}/old")
file(COPY "${work_dir}/made/belay_host.hpp" DESTINATION "${work_dir}/old")  # without the other one
plant(backend/host.hpp "int changed;\n")
find_stale("${planted}" "${work_dir}/old" stale)
list(LENGTH stale count)
if(NOT count EQUAL 2)
  message(SEND_ERROR "2 files are not what is made, ${count} were found: ${stale}")
endif()

# What would be there only sometimes, and what is not there, is refused.
plant(b.hpp "#if defined(OTHER)\n#include \"belay/sometimes.hpp\"\n#endif\n")
plant(sometimes.hpp "int sometimes;\n")
find_stale("${planted}" "${work_dir}/old" stale)
if(NOT stale MATCHES "belay/b.hpp: includes belay/sometimes.hpp only under a condition")
  message(SEND_ERROR "an include under a condition is not refused: ${stale}")
endif()
plant(b.hpp "#include \"belay/nowhere.hpp\"\n")
find_stale("${planted}" "${work_dir}/old" stale)
if(NOT stale MATCHES "belay/nowhere.hpp: cannot be read")
  message(SEND_ERROR "a header that is not there is not refused: ${stale}")
endif()
