# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# One source of belay_check_backward: compiler, standard, flags, response, source, name, stamp are given with -D.
# A consumed diagnostic fails; anything else that Clang objects to is not this check's business.

# Clang's error stands where a handle leaves its scope; what a reader wants is where it was opened. For every object
# of an error, the last line above that declares it is named.
function(name_the_openings text)
  string(REGEX MATCHALL "[^\n]+:[0-9]+:[0-9]+: error: [^\n]* on object '[A-Za-z0-9_]+'" errors "${text}")
  foreach(error IN LISTS errors)
    string(REGEX MATCH "^([^\n]+):([0-9]+):[0-9]+: error: [^\n]* on object '([A-Za-z0-9_]+)'" _ "${error}")
    set(file "${CMAKE_MATCH_1}")
    set(end "${CMAKE_MATCH_2}")
    set(object "${CMAKE_MATCH_3}")
    if(NOT EXISTS "${file}")
      continue()
    endif()
    file(READ "${file}" content)
    string(REGEX REPLACE "[][;]" " " content "${content}")  # they mean something to lists,
    string(REPLACE "\\" " " content "${content}")           # and so does this at the end of a line
    string(REPLACE "\n" ";" lines "${content}")
    set(opened 0)
    set(number 0)
    foreach(line IN LISTS lines)
      math(EXPR number "${number} + 1")
      if(number GREATER end)
        break()
      elseif(line MATCHES "[A-Za-z0-9_>&*] +&*${object} *([={(,)]|$)" AND NOT line MATCHES "(return|co_return) +${object}")
        set(opened ${number})
      endif()
    endforeach()
    if(opened)
      message("${file}:${opened}: note: '${object}' is opened here and not discharged on every way to line ${end}")
    endif()
  endforeach()
endfunction()

set(command ${compiler} -std=c++${standard} ${flags} "@${response}")
execute_process(
  COMMAND ${command} -fsyntax-only -Wno-everything -Wconsumed -Werror=consumed -MD -MF "${stamp}.d" -MT "${stamp}" "${source}"
  RESULT_VARIABLE failed ERROR_VARIABLE diagnostics OUTPUT_QUIET)

if(failed)
  # The first line that says "error"; semicolons would make a list of it.
  string(REPLACE ";" "," diagnostics_text "${diagnostics}")
  string(REGEX MATCH "[^\n]*error: [^\n]*" first "${diagnostics_text}")
  if(first MATCHES "-Wconsumed")
    file(REMOVE "${stamp}")
    message("${diagnostics}")
    name_the_openings("${diagnostics}")
    message(FATAL_ERROR "belay_check_backward: ${name} does not discharge every handle it opens (found by Clang)")
  endif()
  message("belay_check_backward: Clang cannot parse ${name}; missed backwards there are left to the ledger. ${first}")
  if(NOT EXISTS "${stamp}.d")
    execute_process(COMMAND ${command} -M -MF "${stamp}.d" -MT "${stamp}" "${source}" ERROR_QUIET OUTPUT_QUIET)
  endif()
  if(NOT EXISTS "${stamp}.d")
    file(WRITE "${stamp}.d" "${stamp}: ${source}\n")
  endif()
endif()
file(TOUCH "${stamp}")
