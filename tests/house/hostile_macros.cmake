# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Names that other people's headers are known to define as macros (termios.h, complex.h, sys/sysmacros.h, windows.h,
# AssertMacros.h, Qt's keywords, a C header's own min and max) do not appear in ours. The standard library is included
# first: it is not on trial. The preprocessor tells every place where one of them would have been replaced: as an
# object-like macro, and those that are functions elsewhere as such.
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)
set(names I B0 OPTIONAL small near far linux unix interface slots signals emit foreach forever min max)
set(like_functions check major minor report slots signals emit foreach min max)
function(define out names parameters)
  set(lines "")
  foreach(name IN LISTS names)
    string(APPEND lines "#undef ${name}\n#define ${name}${parameters} BELAY_HOSTILE ${name}\n")
  endforeach()
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()
define(objects "${names}" "")
define(functions "${like_functions}" "(...)")

# Sets <out> to "file:line: name" for each use of a macro of <defines> in what <text> includes after it.
function(find_uses defines text out)
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

# The single headers have no other header of ours beside them.
file(GLOB single "${source_dir}/single_include/*.hpp")
foreach(header IN LISTS single)
  list(APPEND included "#include \"${header}\"\n")
endforeach()
list(APPEND included "${include_all}")
foreach(text IN LISTS included)
  foreach(defines IN ITEMS "${objects}" "${functions}")
    find_uses("${defines}" "${text}" uses)
    if(NOT uses STREQUAL "")
      message("${uses}")
      message(SEND_ERROR "names that are macros elsewhere; (major)(device) keeps a function-like one away")
    endif()
  endforeach()
endforeach()

# A name that expands to another one is harmless, also where it is one of ours, as `report` is a member of a run: the
# doors compile.
file(WRITE "${work_dir}/renamed.cpp" "${include_standard}\n#define report reported_elsewhere\n#define slots\n#define emit\n#define signals public\n"
  "#define min(a, b) ((a) < (b) ? (a) : (b))\n#define max(a, b) ((a) > (b) ? (a) : (b))\n"
  "#include \"belay/backend/host.hpp\"\n#include \"belay/belay.hpp\"\nint main() {}\n")
list(GET compilers 0 compiler)
execute_process(COMMAND ${${compiler}} -std=c++20 "-I${root}" -fsyntax-only "${work_dir}/renamed.cpp"
  RESULT_VARIABLE failed ERROR_VARIABLE diagnostics)
if(failed)
  message(SEND_ERROR "${diagnostics}")
endif()

# The test must be able to fail: seven uses and four that are none.
file(WRITE "${work_dir}/planted.hpp" "int small = 0;\nint f(int a) { return check(a) + (check)(a); }\n\n"
  "struct near { int check; int check_it(); };\nint major(int);\nint g(int a) { return min(a, 1) + (max)(a, 1); }\nint forever, (report)(int), report(int);\n")
find_uses("${objects}${functions}" "#include \"planted.hpp\"\n" uses)
string(REGEX REPLACE "[^\n]*/planted" "planted" uses "${uses}")
string(CONCAT expected "planted.hpp:1: small\nplanted.hpp:2: check\nplanted.hpp:4: near\nplanted.hpp:5: major\n"
  "planted.hpp:6: min\nplanted.hpp:7: forever\nplanted.hpp:7: report\n")
if(NOT uses STREQUAL expected)
  message(SEND_ERROR "planted uses were not told as they are:\n${uses}")
endif()
