# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What the command belay_check_backward makes of clang-query's answers: lines, exit codes, and "not checked" wherever an
# answer is missing. A stand-in answers, so that this runs where there is no clang-query.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE "${work_dir}")
file(WRITE "${work_dir}/with space/main.cpp" "int main() {}\n")
set(source "${work_dir}/with space/main.cpp")

# A clang-query that says <errors>, prints <answers>, and returns <result>; it notes what it was asked.
function(stand_in version errors answers result)
  file(WRITE "${work_dir}/errors" "${errors}")
  file(WRITE "${work_dir}/answers" "${answers}")
  file(WRITE "${work_dir}/query" "#!/bin/sh\n"
    "[ \"$1\" != --version ] || { echo 'Debian LLVM version ${version}'; exit 0; }\n"
    "printf '%s\\n' \"$@\" >'${work_dir}/asked'\n"
    "cat '${work_dir}/errors' >&2\ncat '${work_dir}/answers'\nexit ${result}\n")
  file(CHMOD "${work_dir}/query" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

function(expect what result pattern)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env "BELAY_CLANG_QUERY=${work_dir}/query" bash "${command}" ${ARGN}
    RESULT_VARIABLE returned OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT returned EQUAL result OR NOT text MATCHES "${pattern}")
    message(SEND_ERROR "${what}: returned ${returned}, not ${result}, or '${pattern}' is not in\n${text}")
  endif()
  set(text "${text}" PARENT_SCOPE)
endfunction()

string(REPEAT "0 matches.\n" 10 nothing)
stand_in(19.1.7 "" "${nothing}" 0)
expect("nothing found" 0 "^$" "${source}")
expect("nothing found, asked to fail" 0 "^$" --error "${source}")

set(one "\nMatch #1:\n\n${source}:12:3: note: \"name\" binds here\n   12 |   auto&& h = f(\"error: x\");\n1 match.\n")
string(REPEAT "0 matches.\n" 9 others)
stand_in(19.1.7 "main.cpp:3:1: warning: not ours\n" "${others}${one}" 0)
set(line "with space/main\\.cpp:12:3: warning: a reference is the only name of a handle, [^\n]*\\[belay_check_")
string(APPEND line "backward\\]\n$")
expect("found" 0 "${line}" "${source}")
string(REPLACE "warning:" "error:" line "${line}")
expect("found, asked to fail" 1 "${line}" --error "${source}")
expect("found twice, named once" 1 "^[^\n]*${line}" --error "${source}" "${source}")

expect("flags behind --" 0 "" -p "${work_dir}" "${source}" -- -std=c++20 "-DTEXT=a b")
file(READ "${work_dir}/asked" asked)
set(end "\n-p\n${work_dir}\n${source}\n--\n-std=c\\+\\+20\n-DTEXT=a b\n$")
if(NOT asked MATCHES "set traversal AsIs\n.*attr::Consumable.*${end}")
  message(SEND_ERROR "clang-query was asked\n${asked}")
endif()

# Nothing is taken for checked that was not.
stand_in(19.1.7 "${source}:1:5: error: unknown type name 'x'\n" "${nothing}" 0)
expect("does not parse" 3 "main\\.cpp: not checked: [^\n]*error: unknown type name 'x'\n$" "${source}")
stand_in(19.1.7 "${source}:1:1: fatal error: 'belay/step.hpp' file not found\n" "${others}${one}" 0)
expect("does not parse, and something was found" 3 "^[^\n]*not checked: [^\n]*file not found\n$" --error "${source}")
stand_in(19.1.7 "" "1:1: Error parsing argument 1 for matcher fieldDecl.\n" 1)
expect("does not understand the question" 3 "not checked: 1:1: Error parsing argument" "${source}")
stand_in(19.1.7 "" "" 139)
expect("crashes" 3 "not checked: [^\n]* ended without an answer" "${source}")
stand_in(14.0.6 "" "${nothing}" 0)
expect("too old" 3 "not checked: there is no clang-query 16 or newer" "${source}")

stand_in(19.1.7 "" "${nothing}" 0)
expect("no source" 2 "no source was named")
expect("no such source" 2 "there is no file [^\n]*gone.cpp" "${work_dir}/gone.cpp")
expect("unknown flag" 2 "unknown flag --strict" --strict "${source}")
expect("no folder" 2 "-p needs the folder" "${source}" -p)
expect("help" 0 "^belay_check_backward \\[--error\\].*3 not checked" --help)
