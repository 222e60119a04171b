# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_batch(<result> <program> <source>...): a file that includes what the sources include, then each source in a
# namespace of its own, so that what they share is compiled once and nothing of theirs meets.
function(belay_batch result program)
  set(includes "")
  set(bodies "")
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH folder)
    file(STRINGS ${source} lines REGEX "^#include ")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*[\"<](.*)[\">].*" "\\1" included "${line}")
      if(EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${included}")
        set(line "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${included}\"")
      endif()
      list(APPEND includes "${line}")
    endforeach()
    string(MAKE_C_IDENTIFIER "batch_${source}" inside)
    string(APPEND bodies "namespace ${inside} {\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n}\n")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(SORT includes)  # "belay..." before <...>
  list(JOIN includes "\n" includes)
  file(CONFIGURE OUTPUT batches/${program}.cpp CONTENT "${includes}\n${bodies}" @ONLY)
  set(${result} ${CMAKE_CURRENT_BINARY_DIR}/batches/${program}.cpp PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})  # their includes are read here
endfunction()
