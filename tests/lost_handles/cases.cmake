# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# The ways to lose a handle. Each NAME.cpp here is one: its second and third line say what it is, and who names it,
#   // way: a branch that skips the backward
#   // named by: clang, run time
# of g++, clang (always both, or Clang alone), belay_check_backward and run time. With -DBELAY_LOST the handle is lost,
# without it is not. Sets lost_cases, and for each case lost_way_<case> and lost_by_<case>.
set(lost_tiers "g++" clang belay_check_backward "run time")
file(GLOB sources "${CMAKE_CURRENT_LIST_DIR}/*.cpp")
set(lost_cases "")
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  file(STRINGS "${source}" lines LIMIT_COUNT 3 REGEX "^// (way|named by): ")
  if(NOT lines MATCHES "^// way: ([^;]+);// named by: ([^;]+)$")
    message(FATAL_ERROR "${source}: the second and third line are '// way: ...' and '// named by: ...'")
  endif()
  set(lost_way_${name} "${CMAKE_MATCH_1}")
  string(REPLACE ", " ";" lost_by_${name} "${CMAKE_MATCH_2}")
  foreach(tier IN LISTS lost_by_${name})
    if(NOT tier IN_LIST lost_tiers)
      message(FATAL_ERROR "${source}: nobody is called '${tier}' (${lost_tiers})")
    endif()
  endforeach()
  list(APPEND lost_cases ${name})
endforeach()

# Sets <out> to a source of cases, all of those given, and of a main that runs each in a step of its own. Where
# <lost> they lose their handles.
function(lost_program work_dir out lost)
  list(JOIN ARGN "_" key)
  string(MD5 key "${lost} ${key}")
  set(text "")
  if(lost)
    string(APPEND text "#define BELAY_LOST\n")
  endif()
  foreach(name IN LISTS ARGN)
    string(APPEND text "#include \"${name}.cpp\"\n")
  endforeach()
  string(APPEND text "#include \"support/run_case.hpp\"\n\nint main() {\n")
  foreach(name IN LISTS ARGN)
    string(APPEND text "  run_case(\"${name}\", ${name}::run);\n")
  endforeach()
  file(WRITE "${work_dir}/${key}.cpp" "${text}}\n")
  set(${out} "${work_dir}/${key}.cpp" PARENT_SCOPE)
endfunction()
