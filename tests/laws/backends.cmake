# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# The trainer over threads, processes and MPI: the same loss, gradient norm and final weights, bit for bit, with 2, 3
# and 4 ranks; over MPI also with queued streams. So with ZeRO-2 and -3, with pipelines, experts and recompute, and with
# evaluations and rollouts between the steps: values are gathered by address or by messages. One cause has one exit code
# on all. And a run that is interrupted, or loses a rank, ends with one report and leaves nothing.
cmake_minimum_required(VERSION 3.25)
if(NOT train_moe)
  message("skipped: there is no train_moe")
  return()
endif()
file(REMOVE_RECURSE "${work_dir}")
file(MAKE_DIRECTORY "${work_dir}")
file(GLOB sources "${source_dir}/include/belay/core/*.hpp")
foreach(source IN LISTS sources)
  file(READ "${source}" one)
  file(APPEND "${work_dir}/text" "${one}")
endforeach()
set(flags --data "${work_dir}/text" --sequence 16 --micro-batches 6 --micro-batch-size 2)
set(ENV{OMPI_ALLOW_RUN_AS_ROOT} 1)
set(ENV{OMPI_ALLOW_RUN_AS_ROOT_CONFIRM} 1)
set(ENV{OMPI_MCA_rmaps_base_oversubscribe} 1)

# Runs it and sets <out> to what must agree: losses and norms of all steps, and the hash of the weights.
function(train name out)
  cmake_parse_arguments(PARSE_ARGV 2 run "" "" "COMMAND")
  execute_process(COMMAND ${run_COMMAND} --json "${work_dir}/${name}.json" --export "${work_dir}/${name}"
    OUTPUT_VARIABLE said ERROR_VARIABLE errors RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${name}: exit code ${code}\n${said}${errors}")
  endif()
  file(STRINGS "${work_dir}/${name}.json" lines)
  set(numbers "")
  foreach(line IN LISTS lines)
    string(REGEX MATCHALL "\"(loss|grad_norm|aux_loss)\": *[^,}]*|\"text\": *\"[^\"]*" found "${line}")
    list(APPEND numbers ${found})
  endforeach()
  file(SHA256 "${work_dir}/${name}/model.safetensors" hash)
  if(numbers STREQUAL "")
    message(FATAL_ERROR "${name}: no loss in ${work_dir}/${name}.json")
  endif()
  set(${out} "${numbers};${hash}" PARENT_SCOPE)
endfunction()

# The trace of step 2 has all ranks, and all of what they did.
function(expect_trace ranks)
  file(READ "${work_dir}/trace" trace)
  file(REMOVE "${work_dir}/trace")
  string(JSON events LENGTH "${trace}" traceEvents)
  string(JSON forgotten GET "${trace}" otherData forgotten)
  string(REGEX MATCHALL "\"name\":\"step 2\"" steps "${trace}")
  list(LENGTH steps steps)
  if(NOT steps EQUAL ranks OR NOT forgotten EQUAL 0)
    message(FATAL_ERROR "${ranks} ranks: ${events} events, ${forgotten} forgotten, and the step of ${steps} ranks")
  endif()
endfunction()

foreach(mesh pp=1,ep=2 dp=3 pp=2,ep=2)
  string(REGEX REPLACE "[^a-z0-9]" "_" name ${mesh})
  math(EXPR ranks "1")
  string(REGEX MATCHALL "[0-9]+" sizes ${mesh})
  foreach(size IN LISTS sizes)
    math(EXPR ranks "${ranks} * ${size}")
  endforeach()
  train(threads_${name} threads COMMAND ${train_moe} ${flags} --steps 2 --mesh ${mesh})
  train(processes_${name} processes COMMAND
    ${train_moe} ${flags} --steps 2 --mesh ${mesh} --backend processes --trace "${work_dir}/trace")
  expect_trace(${ranks})
  if(NOT threads STREQUAL processes)
    message(FATAL_ERROR "${mesh}: threads\n  ${threads}\nprocesses\n  ${processes}")
  endif()
  set(compared "threads = processes")
  if(mpirun)
    train(mpi_${name} mpi COMMAND ${mpirun} -np ${ranks} ${train_moe} ${flags} --steps 2 --mesh ${mesh} --backend mpi)
    if(NOT threads STREQUAL mpi)
      message(FATAL_ERROR "${mesh}: threads\n  ${threads}\nmpi\n  ${mpi}")
    endif()
    string(APPEND compared " = mpi")
    train(mpi_queued_${name} queued COMMAND
      ${mpirun} -np ${ranks} ${train_moe} ${flags} --steps 2 --mesh ${mesh} --backend mpi --streams queued
      --trace "${work_dir}/trace")
    expect_trace(${ranks})
    if(NOT threads STREQUAL queued)
      message(FATAL_ERROR "${mesh}: threads\n  ${threads}\nmpi, queued\n  ${queued}")
    endif()
    string(APPEND compared " = mpi, queued")
  else()
    string(APPEND compared ", no MPI in this build")
  endif()
  message("${mesh}, ${ranks} ranks: ${compared}")
endforeach()

# What ranks divide: each with another backend than threads.
function(divided name mesh ranks)
  set(its_flags ${flags} --steps 2 --mesh ${mesh} ${ARGN})
  list(JOIN ARGN " " given)
  train(threads_${name} threads COMMAND ${train_moe} ${its_flags})
  train(processes_${name} processes COMMAND ${train_moe} ${its_flags} --backend processes)
  if(NOT threads STREQUAL processes)
    message(FATAL_ERROR "${mesh} ${given}: threads\n  ${threads}\nprocesses\n  ${processes}")
  endif()
  set(compared "threads = processes")
  if(mpirun)
    train(mpi_${name} mpi COMMAND ${mpirun} -np ${ranks} ${train_moe} ${its_flags} --backend mpi)
    if(NOT threads STREQUAL mpi)
      message(FATAL_ERROR "${mesh} ${given}: threads\n  ${threads}\nmpi\n  ${mpi}")
    endif()
    string(APPEND compared " = mpi")
  endif()
  message("${mesh} ${given}: ${compared}")
endfunction()
divided(zero_3_data dp=3 3 --zero 3)
divided(zero_2_pipeline pp=2,dp=2 4 --zero 2)
divided(zero_3_experts dp=2,ep=2 4 --zero 3 --recompute selective)
divided(pairs ep=2 2 --overlap-pairs on)
divided(zero_3_phases pp=2,dp=2 4 --zero 3 --phases train=1,eval=1,rollout=1)

# One cause has one exit code, whatever ranks are and who has started them. A folder that is not there is found before
# they start; that a file cannot be as large as it must be, by them.
file(WRITE "${work_dir}/limited.sh" "trap '' XFSZ
ulimit -f 24576
exec \"$@\"
")
set(offloads ${flags} --steps 1 --mesh dp=2 --zero 0 --offload optimizer:file --tier-dir)
set(starts threads processes)
if(belay_run)
  list(APPEND starts belay-run)
endif()
if(mpirun)
  list(APPEND starts mpirun)
endif()
foreach(start IN LISTS starts)
  set(before "")
  set(backend ${start})
  if(start STREQUAL "belay-run")
    set(before ${belay_run} -n 2)
    set(backend processes)
  elseif(start STREQUAL "mpirun")
    set(before ${mpirun} -np 2)
    set(backend mpi)
  endif()
  foreach(folder "${work_dir}/none" /tmp)
    set(expected "there is no folder ${work_dir}/none")
    if(start STREQUAL "mpirun")
      set(expected "")  # rank 0 tells it, if mpirun lets it: the first rank that ends ends all
    endif()
    if(folder STREQUAL "/tmp")
      set(expected "tier file: cannot allocate [0-9]+ bytes: File too large")
    endif()
    execute_process(COMMAND ${before} bash "${work_dir}/limited.sh" ${train_moe} ${offloads} ${folder} --backend ${backend}
      OUTPUT_VARIABLE said ERROR_VARIABLE errors RESULT_VARIABLE code)
    if(NOT code EQUAL 2 OR NOT errors MATCHES "${expected}")
      message(FATAL_ERROR "${start}, --tier-dir ${folder}: exit code ${code} instead of 2, or other words:\n${errors}")
    endif()
  endforeach()
  message("${start}: what a file tier refuses has exit code 2")
endforeach()

# Once the first step is on the page: one rank is killed, or all are interrupted as by Ctrl-C.
foreach(fault "kill -9 $(ps -o pid= --ppid $run | tail -n 1)" "kill -INT $run $(ps -o pid= --ppid $run)")
  file(REMOVE "${work_dir}/broken.json")
  file(REMOVE_RECURSE "${work_dir}/page")
  file(WRITE "${work_dir}/break.sh" "
    set -m
    \"$@\" >/dev/null 2>'${work_dir}/report' &
    run=$!
    until [ -s '${work_dir}/page/index.html' ] || ! kill -0 $run; do :; done
    ${fault}
    wait $run
    echo $?
    ps -o pid= --ppid $run
  ")
  execute_process(COMMAND bash "${work_dir}/break.sh" ${train_moe} ${flags} --steps 100000 --backend processes
      --json "${work_dir}/broken.json" --report "${work_dir}/page"
    OUTPUT_VARIABLE code OUTPUT_STRIP_TRAILING_WHITESPACE)
  file(STRINGS "${work_dir}/report" report)
  list(LENGTH report lines)
  if(NOT lines EQUAL 1 OR NOT report MATCHES "train_moe: .*peer_failed.*was ended by SIG")
    message(FATAL_ERROR "after ${fault}: not one clear report but ${lines} lines:\n${report}")
  endif()
  # The page does not say for ever that they run, whichever rank was killed.
  set(expected_code 137)
  if(fault MATCHES "INT")
    set(expected_code 130)
  endif()
  if(NOT code STREQUAL expected_code)
    message(FATAL_ERROR "after ${fault}: exit code and left processes: ${code}, not ${expected_code}")
  endif()
  file(READ "${work_dir}/page/index.html" page)
  if(NOT page MATCHES "<p class=\"soft\">(failed|failed     |interrupted); 4 ranks")
    message(FATAL_ERROR "after ${fault} the page says something else")
  endif()
  message("${fault}: ${report}")
endforeach()
