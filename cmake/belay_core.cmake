# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_core(NAME [CHECKS n] [OPTIONS option...])
#   makes a library target of what depends on no type of a program, and of trainings on ranks of the host:
#   belay/source.hpp, compiled once in this build, part by part, with the flags of the directory that calls it. Link NAME
#   in the place of belay::belay to targets that are compiled in another way than the rest: CHECKS is their BELAY_CHECKS,
#   OPTIONS are those of their compile options that must be the core's too (-fsanitize=thread, -march=native,
#   -D_GLIBCXX_DEBUG, -DNDEBUG). A program of another BELAY_CHECKS does not link, and the linker's line says so.
#
# belay::belay is such a core, made here unless there is one; nothing compiles it before something links it. Serves both
# this project and those who find it installed. A project without C++ of its own (only CUDA, say) gets headers alone.
# belay::report_page is what a program links that includes belay/report_page.hpp: belay::belay, and all that pages need.

# A library of the parts 1 to `parts` of a header, each a source of its own, that nothing compiles before it is linked.
function(belay_compiled_parts name header parts extension)
  string(MAKE_C_IDENTIFIER "${name}" file)
  set(sources "")
  foreach(part RANGE 1 ${parts})
    set(source "${CMAKE_CURRENT_BINARY_DIR}/belay_core/${file}_${part}.${extension}")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#define BELAY_SOURCE_PART ${part}\n#include \"${header}\"\n" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${sources})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)  # also for shared libraries
endfunction()

function(belay_core name)
  cmake_parse_arguments(PARSE_ARGV 1 core "" "CHECKS" "OPTIONS")
  if(core_UNPARSED_ARGUMENTS OR "CHECKS" IN_LIST core_KEYWORDS_MISSING_VALUES)
    message(FATAL_ERROR "belay_core(${ARGV}): it takes a name, CHECKS n and OPTIONS option...")
  endif()
  if(DEFINED core_CHECKS AND NOT core_CHECKS MATCHES "^[012]$")
    message(FATAL_ERROR "belay_core(${name}): CHECKS is 0 (release), 1 (local checks) or 2 (also across ranks), not '${core_CHECKS}'")
  endif()
  if(TARGET ${name})
    message(FATAL_ERROR "belay_core(${name}): there is a target of that name; belay_core is that of belay::belay")
  endif()
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT "CXX" IN_LIST languages)
    message(FATAL_ERROR "belay_core(${name}): a core is compiled as CXX: say project(NAME LANGUAGES CXX ...)")
  endif()
  belay_compiled_parts(${name} belay/source.hpp 15 cpp)  # side by side
  target_link_libraries(${name} PUBLIC belay::header_only)
  target_compile_definitions(${name} PUBLIC BELAY_SEPARATE_COMPILATION)
  target_compile_options(${name} PRIVATE ${core_OPTIONS})
  if(DEFINED core_CHECKS)
    target_compile_options(${name} PUBLIC -UBELAY_CHECKS -DBELAY_CHECKS=${core_CHECKS})
  endif()
endfunction()

get_property(belay_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(NOT TARGET belay::belay)
  if("CXX" IN_LIST belay_languages)
    belay_core(belay_core)
  else()
    add_library(belay_core INTERFACE)
    target_link_libraries(belay_core INTERFACE belay::header_only)
  endif()
  # Imported ones and no aliases: a library that links one can be installed with its targets, which then name it so.
  foreach(belay_name belay host_compiled)  # host_compiled: its name before 0.3, which stays through 0.3
    add_library(belay::${belay_name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(belay::${belay_name} INTERFACE belay_core)
  endforeach()
endif()
if(NOT TARGET belay::report_page)
  add_library(belay::report_page INTERFACE IMPORTED GLOBAL)
  target_link_libraries(belay::report_page INTERFACE belay::belay)
endif()
