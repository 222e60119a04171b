# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Two translation units that both include everything link into one program: nothing is defined twice.
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)
file(REMOVE "${work_dir}/first.o" "${work_dir}/second.o")
file(WRITE "${work_dir}/first.cpp" "${include_all}int other();\nint main() { return other(); }\n")
file(WRITE "${work_dir}/second.cpp" "${include_all}int other();\nint other() { return 0; }\n")
compile(${compiler} "${work_dir}/first.cpp" -c -o "${work_dir}/first.o")
compile(${compiler} "${work_dir}/second.cpp" -c -o "${work_dir}/second.o")
if(NOT EXISTS "${work_dir}/first.o" OR NOT EXISTS "${work_dir}/second.o")
  return()
endif()
list(GET ${compiler} 0 linker)
execute_process(COMMAND ${linker} "${work_dir}/first.o" "${work_dir}/second.o" -pthread -o "${work_dir}/two_units"
  RESULT_VARIABLE failed ERROR_VARIABLE diagnostics)
if(failed)
  message(FATAL_ERROR "two translation units do not link:\n${diagnostics}")
endif()
execute_process(COMMAND "${work_dir}/two_units" RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "the program of two translation units returned ${failed}")
endif()
