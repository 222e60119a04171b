# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# A trainer of one's own and the same with Belay: equal losses to 1e-5 on any number of ranks, threads, processes and
# under a launcher, and at most 60 inserted lines.
cmake_minimum_required(VERSION 3.25)
set(steps 12)
set(text "${source_dir}/include/belay/core/view.hpp")

# The losses of all steps in millionths.
function(losses_of out)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE said ERROR_VARIABLE errors RESULT_VARIABLE code)
  string(REGEX MATCHALL "loss [0-9]+[.][0-9][0-9][0-9][0-9][0-9][0-9]" found "${said}")
  list(LENGTH found count)
  if(NOT code EQUAL 0 OR NOT count EQUAL steps)
    message(FATAL_ERROR "${ARGN}: exit code ${code}, ${count} of ${steps} steps\n${said}${errors}")
  endif()
  list(TRANSFORM found REPLACE "loss |[.]" "")
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(expect_same_curve)
  losses_of(losses ${ARGN})
  foreach(one other IN ZIP_LISTS wanted losses)
    math(EXPR apart "${one} - ${other}")
    if(apart LESS -10 OR apart GREATER 10)
      message(SEND_ERROR "${ARGN}: a loss of ${other} millionths, without Belay ${one}")
    endif()
  endforeach()
endfunction()

losses_of(wanted ${plain} ${steps} ${text})
list(GET wanted 0 first)
list(GET wanted -1 last)
if(NOT last LESS first)
  message(SEND_ERROR "the loss does not fall: ${wanted}")
endif()
foreach(ranks 1 2 3 9)
  expect_same_curve(${belay} ${steps} ${text} ${ranks} threads)
endforeach()
expect_same_curve(${belay} ${steps} ${text} 3 processes)
expect_same_curve(${belay_run} -n 2 ${belay} ${steps} ${text})

find_program(git git)
if(git)
  execute_process(COMMAND ${git} diff --no-index --numstat ${source_dir}/examples/custom_trainer.cpp
    ${source_dir}/examples/custom_trainer_belay.cpp OUTPUT_VARIABLE lines)
  string(REGEX MATCH "^[0-9]+" inserted "${lines}")
  message("${inserted} lines inserted, 60 at most")
  if(NOT inserted LESS_EQUAL 60)
    message(SEND_ERROR "${lines}")
  endif()
endif()
