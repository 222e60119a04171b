# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Four families of macros, all of them here: configuration, BELAY_HD, BELAY_DECL, and Clang's annotations.
cmake_minimum_required(VERSION 3.25)
set(allowed
  BELAY_VERSION BELAY_VERSION_MAJOR BELAY_VERSION_MINOR BELAY_VERSION_PATCH BELAY_CHECKS BELAY_ABI
  BELAY_HD
  BELAY_DECL
  BELAY_OBLIGATION BELAY_OPENS BELAY_IF_OPEN BELAY_DISCHARGES BELAY_IF_DISCHARGED BELAY_ENDS)
set(wrong "")
file(GLOB_RECURSE headers RELATIVE "${source_dir}/include" "${source_dir}/include/*")
foreach(header IN LISTS headers)
  file(STRINGS "${source_dir}/include/${header}" lines REGEX "^[ \t]*#[ \t]*define[ \t]")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[ \t]*#[ \t]*define[ \t]+([A-Za-z0-9_]+).*" "\\1" name "${line}")
    if(NOT name IN_LIST allowed)
      list(APPEND wrong "${header}: ${name}")
    elseif(NOT header MATCHES "^belay/(core/config|version)\\.hpp$")
      list(APPEND wrong "${header}: ${name} is defined outside core/config.hpp")
    endif()
  endforeach()
endforeach()
if(wrong)
  list(JOIN wrong "\n  " text)
  message(FATAL_ERROR "macros that belong to none of the four families:\n  ${text}")
endif()
