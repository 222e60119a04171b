# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Included by the tests that need every header at once: sets `headers`, `include_all` (the lines that include
# them) and `include_standard` (the lines that include what they include from elsewhere). Backends and interop
# headers that stand on a foreign library are left out.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
set(root "${source_dir}/include")
file(GLOB_RECURSE headers RELATIVE "${root}" "${root}/*.hpp")
list(FILTER headers EXCLUDE REGEX "^belay/(backend/(mpi|nccl)|source\\.hpp|ext/)")
set(include_all "")
set(standard "")
foreach(header IN LISTS headers)
  string(APPEND include_all "#include \"${header}\"\n")
  file(STRINGS "${root}/${header}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*<")
  list(APPEND standard ${lines})
endforeach()
list(FILTER standard EXCLUDE REGEX "<liburing\\.h>")  # only where it is found
list(REMOVE_DUPLICATES standard)
list(SORT standard)
list(JOIN standard "\n" include_standard)
file(MAKE_DIRECTORY "${work_dir}")

# compile(<compiler> <source> <flags>...): fails the test with the first lines of what the compiler says.
function(compile compiler source)
  execute_process(COMMAND ${${compiler}} -std=c++20 "-I${root}" -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror ${ARGN} "${source}"
    RESULT_VARIABLE failed ERROR_VARIABLE diagnostics OUTPUT_QUIET)
  if(failed)
    string(SUBSTRING "${diagnostics}" 0 3000 diagnostics)
    message("${diagnostics}")
    message(SEND_ERROR "${compiler} does not compile ${source}")
  endif()
endfunction()
