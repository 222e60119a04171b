# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# No mutable state outside objects: nothing under include/ defines a variable at namespace scope, in a class or
# static in a function that is not constant. Clang's syntax tree sees templates that nobody instantiated, and the symbol
# table of this build's core, -Dcore=<library>, is read; where one of the two is not there, g++ keeps every inline function
# and its symbol table is read.
#
# The environment is read in one file.
#
# But for this: a signal handler is given a number and an address, and can be given nothing else. Which rehearsals the
# faulting thread has open, which page says that its run goes on, who asks whether
# the run is to stop, and what handled the signal before, it can find in static storage only.
set(of_signal_handlers "rehearsing_thread_|fault_handler_|requested_stop_|watched_page_")
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)

file(GLOB_RECURSE headers "${source_dir}/include/*.hpp" "${source_dir}/include/*.ipp" "${source_dir}/include/*.cuh")
foreach(header IN LISTS headers)
  file(STRINGS "${header}" reads REGEX "(^|[^e])getenv *\\(")
  if(reads AND NOT header MATCHES "belay/core/process\\.ipp$")
    message(FATAL_ERROR "${header} reads the environment: ${reads}; belay/core/process.hpp does")
  endif()
endforeach()

# Of Clang's dump: variables that a namespace holds, and those that are called static, inline or thread-local.
set(static_variables [=[
/^Dumping/ { next }
{
  match($0, /[A-Za-z]/)
  depth = RSTART
  kind = substr($0, depth)
  sub(/ .*/, "", kind)
  kinds[depth] = kind
  holder = depth == 1 ? "NamespaceDecl" : kinds[depth - 2]
  if (kind == "VarDecl" && (holder ~ /^(NamespaceDecl|VarTemplateDecl)$/ || $0 ~ /' (static|inline|extern|tls)/)) print
}
]=])

# Sets <out> to the mutable variables of static storage that <source> defines in namespace belay; of what g++ makes of it
# ARGN may be a part that is compiled.
function(find_state source out)
  set(found "")
  if("clang" IN_LIST compilers)
    execute_process(
      COMMAND ${clang} -std=c++20 "-I${root}" -fsyntax-only -Xclang -ast-dump -Xclang -ast-dump-filter=belay "${source}"
      COMMAND awk "${static_variables}"
      OUTPUT_VARIABLE dump ERROR_QUIET)
    string(REGEX REPLACE "[][;]" "," dump "${dump}")
    string(REPLACE "\n" ";" dump "${dump}")
    foreach(line IN LISTS dump)
      if(line MATCHES " constexpr" OR NOT line MATCHES "([A-Za-z_0-9]+) '([^']+)'")
        continue()
      endif()
      set(name "${CMAKE_MATCH_1}")
      set(type "${CMAKE_MATCH_2}")
      if(name MATCHES "^(${of_signal_handlers})$")
        continue()
      endif()
      # Constant is `const T` with nothing pointed to, or a pointer that is itself constant; a reference has no state.
      string(REGEX REPLACE "<.*>" "" outside "${type}")
      if(NOT outside MATCHES "^const [^*]*$|[*] ?const( |,|$)|&$")
        list(APPEND found "${type} ${name}")
      endif()
    endforeach()
  endif()
  if("gcc" IN_LIST compilers)
    set(compiled ${ARGN})
    if(NOT compiled)
      set(compiled "${work_dir}/state.o")
      execute_process(COMMAND ${gcc} -std=c++20 "-I${root}" -O0 -fkeep-inline-functions -c "${source}" -o "${compiled}"
        RESULT_VARIABLE failed ERROR_VARIABLE diagnostics)
      if(failed)
        string(SUBSTRING "${diagnostics}" 0 3000 diagnostics)
        message("${diagnostics}")
        message(FATAL_ERROR "g++ does not compile ${source}")
      endif()
    endif()
    execute_process(COMMAND nm -C --format=sysv --defined-only "${compiled}" COMMAND grep -aE "OBJECT|TLS" OUTPUT_VARIABLE dump)
    string(REGEX REPLACE "[][;]" "," dump "${dump}")
    string(REPLACE "\n" ";" dump "${dump}")
    foreach(line IN LISTS dump)
      if(line MATCHES "^([^|]*belay::[^|]*)[|].*[|]\\.t?(data|bss)" AND NOT line MATCHES
          "\\.data\\.rel\\.ro|^guard variable|^std::__ioinit|^belay::[a-z0-9_]+::rehearsal_watch::(${of_signal_handlers}) ")
        list(APPEND found "${CMAKE_MATCH_1}")
      endif()
    endforeach()
  endif()
  list(REMOVE_DUPLICATES found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

file(WRITE "${work_dir}/everything.cpp" "${include_all}")
if(NOT ("clang" IN_LIST compilers AND EXISTS "${core}"))
  set(core "")
endif()
find_state("${work_dir}/everything.cpp" state ${core})
if(state)
  list(JOIN state "\n  " text)
  message(SEND_ERROR "mutable state outside objects:\n  ${text}")
endif()

# The test must be able to fail: each line on its own is state, and the last ones are not.
foreach(line "inline int a = 0;" "inline int f() { static int a = 0; return ++a; }" "struct s { static inline int a = 0; };"
    "template <class T> struct s { static inline T a{}; };" "thread_local int a = 0;" "inline thread_local int a = 0;"
    "template <class T> T f() { static T a{}; return ++a; }" "inline const char* a = 0;" "int a = 1;" "inline int* a[2];")
  file(WRITE "${work_dir}/planted.cpp" "namespace belay { inline namespace v { ${line} } }\n")
  find_state("${work_dir}/planted.cpp" state)
  if(NOT state AND "clang" IN_LIST compilers)
    message(SEND_ERROR "not noticed: ${line}")
  endif()
endforeach()
foreach(line "inline constexpr int a = 0;" "inline const char* const a[] = {\"a\", \"b\"};" "struct s { int a = 0; };"
    "inline int f(int b) { int a = b; const auto g = [&] { int c = a; return c; }; return g(); }"
    "inline int f() { static const int a = 3; return a; }" "template <class T> inline constexpr T a = 1;"
    "inline int f(int b) { return [b] { int a = b; return a; }(); }" "template <class T> constexpr int a = 1;")
  file(WRITE "${work_dir}/innocent.cpp" "namespace belay { inline namespace v { ${line} } }\n")
  find_state("${work_dir}/innocent.cpp" state)
  if(state)
    message(SEND_ERROR "wrongly called state: ${line} (${state})")
  endif()
endforeach()
