# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# cmake -Dtools=<names> ... -P tools.cmake: installs the component `tools` of this build and runs what came.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${work_dir})
file(MAKE_DIRECTORY ${work_dir})

function(run expected)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work_dir} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0 OR NOT output MATCHES "${expected}")
    message(FATAL_ERROR "${ARGN}: returned ${result}, '${expected}' expected\n${output}")
  endif()
endfunction()

run("" ${CMAKE_COMMAND} --install ${build_dir} --prefix ${work_dir}/prefix --component tools)
file(GLOB_RECURSE installed RELATIVE ${work_dir}/prefix ${work_dir}/prefix/*)
set(wanted ${tools})
list(TRANSFORM wanted PREPEND bin/)
list(SORT installed)
list(SORT wanted)
if(NOT installed STREQUAL wanted)
  message(FATAL_ERROR "the component tools installs '${installed}', not '${wanted}'")
endif()
foreach(tool IN LISTS tools)
  run("${tool}" ${work_dir}/prefix/bin/${tool} --help)
endforeach()
if("belay-run" IN_LIST tools)
  run("\\[1\\] here" ${work_dir}/prefix/bin/belay-run -n 2 ${CMAKE_COMMAND} -E echo here)
endif()
