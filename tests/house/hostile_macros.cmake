# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Names that other people's headers are known to define as macros (termios.h, complex.h, sys/sysmacros.h, windows.h,
# AssertMacros.h) do not appear in ours. The standard library is included first: it is not on trial. The preprocessor
# tells every place where one of them would have been replaced.
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)
set(names I B0 check OPTIONAL small near far major minor linux unix interface)
set(like_functions check major minor)
set(defines "")
foreach(name IN LISTS names)
  set(parameters "")
  if(name IN_LIST like_functions)
    set(parameters "(...)")
  endif()
  string(APPEND defines "#undef ${name}\n#define ${name}${parameters} BELAY_HOSTILE ${name}\n")
endforeach()

# Sets <out> to "file:line: name" for each use in what <text> includes after the definitions.
function(find_uses text out)
  file(WRITE "${work_dir}/hostile.cpp" "${include_standard}\n${defines}${text}")
  list(GET compilers 0 compiler)
  execute_process(
    COMMAND ${${compiler}} -std=c++20 "-I${root}" "-I${work_dir}" -E "${work_dir}/hostile.cpp"
    COMMAND awk [=[
      /^# [0-9]+ "/ { line = $2; file = $3; gsub(/"/, "", file); next }
      {
        for (i = 1; i < NF; ++i) {
          if ($i !~ /BELAY_HOSTILE$/) continue
          name = $(i + 1)
          sub(/[^A-Za-z0-9_].*/, "", name)
          print file ":" line ": " name
        }
        ++line
      }
    ]=]
    RESULTS_VARIABLE failed OUTPUT_VARIABLE uses ERROR_VARIABLE diagnostics)
  if(NOT failed STREQUAL "0;0")
    message(FATAL_ERROR "${diagnostics}")
  endif()
  set(${out} "${uses}" PARENT_SCOPE)
endfunction()

find_uses("${include_all}" uses)
if(NOT uses STREQUAL "")
  message("${uses}")
  message(SEND_ERROR "names that are macros elsewhere; (major)(device) keeps a function-like one away")
endif()

# The test must be able to fail: four uses and two that are none.
file(WRITE "${work_dir}/planted.hpp" "int small = 0;\nint f(int a) { return check(a) + (check)(a); }\n\n"
  "struct near { int check; int check_it(); };\nint major(int);\n")
find_uses("#include \"planted.hpp\"\n" uses)
string(REGEX REPLACE "[^\n]*/planted" "planted" uses "${uses}")
set(expected "planted.hpp:1: small\nplanted.hpp:2: check\nplanted.hpp:4: near\nplanted.hpp:5: major\n")
if(NOT uses STREQUAL expected)
  message(SEND_ERROR "planted uses were not told as they are:\n${uses}")
endif()
