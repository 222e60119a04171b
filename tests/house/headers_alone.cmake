# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Every header of one room compiles as the only thing a file includes, with warnings as errors.
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)
if(room STREQUAL "doors")
  list(FILTER headers EXCLUDE REGEX "^belay/[a-z]+/")
else()
  list(FILTER headers INCLUDE REGEX "^belay/${room}/")
endif()
foreach(header IN LISTS headers)
  file(WRITE "${work_dir}/alone.cpp" "#include \"${header}\"\n#include \"${header}\"\n")
  compile(${compiler} "${work_dir}/alone.cpp" -fsyntax-only)
endforeach()
