# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_check_backward in a project compiled by g++ (and nvcc, where found): a missed backward fails the build and
# names handle and line; what Clang cannot parse is said in one line and built; a repair is seen by the next build.
include(${CMAKE_CURRENT_LIST_DIR}/arguments.cmake)
if(NOT "clang" IN_LIST compilers OR NOT "gcc" IN_LIST compilers)
  message("needs g++ and Clang")
  return()
endif()
file(REMOVE_RECURSE "${work_dir}")
file(COPY "${test_dir}/check_backward/" DESTINATION "${work_dir}/source")
list(GET gcc 0 gxx)
list(GET clang 0 clangxx)
find_program(nvcc NAMES nvcc PATHS /usr/local/cuda/bin)
set(cuda "")
if(nvcc)
  set(cuda "-Dbelay_test_nvcc=1" "-DCMAKE_CUDA_COMPILER=${nvcc}" "-DCMAKE_CUDA_ARCHITECTURES=80" "-DCMAKE_CUDA_HOST_COMPILER=${gxx}")
endif()

function(configure build_dir cxx)
  execute_process(COMMAND ${CMAKE_COMMAND} -S "${work_dir}/source" -B "${build_dir}" -G ${generator}
      "-DCMAKE_CXX_COMPILER=${cxx}" "-Dbelay_source_dir=${source_dir}" ${ARGN}
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(build build_dir target)
  execute_process(COMMAND ${CMAKE_COMMAND} --build "${build_dir}" --target ${target}
    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(failed "${failed}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect_success target)
  build("${work_dir}/build" ${target})
  if(failed OR output MATCHES "cannot parse")
    message(SEND_ERROR "${target} should have passed:\n${output}")
  endif()
endfunction()

function(expect_missed target handle opened line)
  build("${work_dir}/build" ${target})
  if(NOT failed OR NOT output MATCHES "${target}\\.(cpp|cu):${line}:[0-9]+: error: [^\n]*'${handle}'[^\n]*-Wconsumed"
      OR NOT output MATCHES "${target}\\.(cpp|cu):${opened}: note: '${handle}'")
    message("${output}")
    message(SEND_ERROR "${target}: no error for '${handle}' at line ${line}, opened at line ${opened}")
  endif()
endfunction()

configure("${work_dir}/build" ${gxx} ${cuda})
expect_success(whole)
expect_success(answered)
expect_missed(missed forgotten 6 9)
expect_missed(skipped skipped 9 13)

build("${work_dir}/build" foreign)
if(failed OR NOT output MATCHES "Clang cannot parse foreign.cpp")
  message(SEND_ERROR "what Clang cannot parse should be said and built:\n${output}")
endif()

# Nothing to do the second time; a changed header is looked at again.
build("${work_dir}/build" whole)
if(output MATCHES "Looking for missed")
  message(SEND_ERROR "checked again although nothing changed:\n${output}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -E sleep 1.1)
file(TOUCH "${work_dir}/source/handle.hpp")
build("${work_dir}/build" whole)
if(failed OR NOT output MATCHES "Looking for missed")
  message(SEND_ERROR "a changed header was not looked at:\n${output}")
endif()
file(READ "${work_dir}/source/missed.cpp" text)
string(REPLACE "if (count > 1) " "" text "${text}")
file(WRITE "${work_dir}/source/missed.cpp" "${text}")
expect_success(missed)

if(nvcc)
  expect_success(whole_cuda)
  expect_missed(missed_cuda hidden 11 14)  # in spite of all that a trainer includes
endif()

# Compiled by Clang the target's own flags do it, and nothing is added.
file(COPY "${test_dir}/check_backward/missed.cpp" DESTINATION "${work_dir}/source")
configure("${work_dir}/build_clang" ${clangxx})
build("${work_dir}/build_clang" missed)
if(NOT failed OR NOT output MATCHES "'forgotten'[^\n]*-Wconsumed" OR output MATCHES "Looking for missed")
  message(SEND_ERROR "a target compiled by Clang:\n${output}")
endif()

# Without a Clang one line says so and everything is built.
configure("${work_dir}/build_without" ${gxx} -DBELAY_CLANG=NOTFOUND)
build("${work_dir}/build_without" missed)
if(failed)
  message(SEND_ERROR "without Clang:\n${output}")
endif()
