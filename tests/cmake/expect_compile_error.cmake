# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cmake -Dcompiler="g++ flags" -Dsource=case.cpp -Dsource_dir=<repository> [-Dbroken=<folder>] -P expect_compile_error.cmake
# With -DBELAY_BROKEN the case must not compile, the first error must match the expression of the first line, and what the
# user has to read must not be longer than 25 lines. Where the case was compiled with others (broken_batch.cmake), what
# was said of it is in the folder `broken`; a case of which that is not enough is compiled alone, and that decides.
separate_arguments(compiler UNIX_COMMAND "${compiler}")
set(command ${compiler} -std=c++20 -fsyntax-only "-I${source_dir}/include" "-I${source_dir}/examples" "-I${source_dir}/tests" "${source}")

# Brackets and semicolons mean something to CMake's lists, so the file is read as one string.
file(READ "${source}" text)
if(NOT text MATCHES "^// expect: ([^\n]+)")
  message(FATAL_ERROR "the first line of ${source} is not '// expect: <regular expression>'")
endif()
set(expected "${CMAKE_MATCH_1}")
if(NOT text MATCHES "BELAY_BROKEN")
  message(FATAL_ERROR "${source} has no part under BELAY_BROKEN")
endif()

cmake_path(GET source STEM name)
set(said "${broken}/${name}.txt")
if(DEFINED broken AND EXISTS "${said}" AND "${said}" IS_NEWER_THAN "${source}")
  file(READ "${said}" diagnostics)
  string(REGEX MATCH "error: [^\n]*" first "${diagnostics}")
  string(REGEX REPLACE "[^\n]" "" newlines "${diagnostics}")
  string(LENGTH "${newlines}" count)
  if(first MATCHES "${expected}" AND NOT count GREATER 25)
    return()
  endif()
  message("compiled alone, since with the others it had ${count} lines and began with '${first}'")
endif()

execute_process(COMMAND ${command} -DBELAY_BROKEN RESULT_VARIABLE failed ERROR_VARIABLE diagnostics OUTPUT_QUIET)
if(NOT failed)
  message(FATAL_ERROR "the broken form compiles")
endif()
string(REGEX MATCH "error: [^\n]*" first "${diagnostics}")
if(NOT first MATCHES "${expected}")
  message("${diagnostics}")
  message(FATAL_ERROR "the first error is\n  ${first}\nand does not match\n  ${expected}")
endif()
string(REGEX REPLACE "[^\n]" "" newlines "${diagnostics}")
string(LENGTH "${newlines}" count)
if(count GREATER 25)
  message("${diagnostics}")
  message(FATAL_ERROR "${count} lines of diagnostics, 25 are the limit")
endif()
