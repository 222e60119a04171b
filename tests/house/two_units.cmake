# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Two translation units that both include everything link into one program: nothing is defined twice.
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)
file(REMOVE "${work_dir}/first.o" "${work_dir}/second.o")
file(WRITE "${work_dir}/main.cpp" "int main() {}\n")
file(WRITE "${work_dir}/first.cpp" "${include_all}")
compile(${compiler} "${work_dir}/main.cpp" -c -o "${work_dir}/main.o")
compile(${compiler} "${work_dir}/first.cpp" -c -o "${work_dir}/first.o")
if(NOT EXISTS "${work_dir}/first.o" OR NOT EXISTS "${work_dir}/main.o")
  return()
endif()
file(COPY_FILE "${work_dir}/first.o" "${work_dir}/second.o")  # another unit of these lines would be equal
list(GET ${compiler} 0 linker)
execute_process(COMMAND ${linker} "${work_dir}/main.o" "${work_dir}/first.o" "${work_dir}/second.o" -pthread -o "${work_dir}/two_units"
  RESULT_VARIABLE failed ERROR_VARIABLE diagnostics)
if(failed)
  message(FATAL_ERROR "two translation units do not link:\n${diagnostics}")
endif()
execute_process(COMMAND "${work_dir}/two_units" RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "the program of two translation units returned ${failed}")
endif()
