# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_precompiled(<target> <source>...): the target reads what the compiler has made of the headers once. Not CMake's own
# precompiled headers, which are system headers, without warnings. A source that defines macros for the headers reads
# them itself, and so do programs whose definitions or optimization are their own.
if(BELAY_TEST_PRECOMPILED AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(header "#include \"belay/backend/host.hpp\"\n#include \"belay/belay.hpp\"\n#include <doctest/doctest.h>\n")
  if(nlohmann_json_FOUND)
    string(APPEND header "#include <nlohmann/json.hpp>\n")
  endif()
  file(CONFIGURE OUTPUT precompiled.hpp CONTENT "${header}" @ONLY)
  set(header ${CMAKE_CURRENT_BINARY_DIR}/precompiled.hpp)
  set_source_files_properties(${header} PROPERTIES LANGUAGE CXX
    COMPILE_OPTIONS "-xc++-header$<$<CXX_COMPILER_ID:Clang>:;-fpch-instantiate-templates>")
  add_library(belay_test_precompiled OBJECT EXCLUDE_FROM_ALL ${header})
  target_link_libraries(belay_test_precompiled PRIVATE belay_test_doctest ${belay_linked} belay_warnings belay_example_blas)
  if(nlohmann_json_FOUND)
    target_link_libraries(belay_test_precompiled PRIVATE nlohmann_json::nlohmann_json)
  endif()
  add_custom_target(belay_test_precompiled_first DEPENDS $<TARGET_OBJECTS:belay_test_precompiled>)
  set(belay_with_precompiled "-include-pch $<TARGET_OBJECTS:belay_test_precompiled>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # it looks for a file of that name beside the header
    add_custom_command(OUTPUT precompiled.hpp.gch DEPENDS $<TARGET_OBJECTS:belay_test_precompiled>
      COMMAND ${CMAKE_COMMAND} -E create_symlink $<TARGET_OBJECTS:belay_test_precompiled> precompiled.hpp.gch)
    add_custom_target(belay_test_precompiled_beside DEPENDS precompiled.hpp.gch)
    add_dependencies(belay_test_precompiled_first belay_test_precompiled_beside)
    set(belay_with_precompiled "-include ${header} -fpch-deps")
  endif()
endif()

function(belay_precompiled target)
  if(NOT TARGET belay_test_precompiled OR "${ARGN}" MATCHES "^unit/(core|kernel|device|comm)/|/tier_file|/rehearsal_watch|/explained_faults" OR "${ARGN}" MATCHES "${BELAY_TEST_OPTIMIZED}")
    return()
  endif()
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} own REGEX "^# *(define|undef) " LIMIT_COUNT 1)
    if(own)
      return()
    endif()
  endforeach()
  target_compile_options(${target} PRIVATE "SHELL:${belay_with_precompiled}")
  add_dependencies(${target} belay_test_precompiled_first)  # of its headers the compiler tells Ninja (g++ where it is asked to)
endfunction()
