# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# Separate compilation: source.hpp includes every .ipp that has other functions than templates; a header of its folder does so
# otherwise, unless it holds instantiations that its header then declares. One that has templates alone its header includes
# always, and what they make of the types of ranks of the host is in source.hpp. Translation units that only see declarations
# link with source.hpp, in parts or whole, and with no other; a trainer on ranks of the host compiles no store and no optimizer.
include(${CMAKE_CURRENT_LIST_DIR}/all_headers.cmake)
set(source_hpp "belay/source.hpp")
file(REMOVE_RECURSE "${work_dir}")
file(MAKE_DIRECTORY "${work_dir}")

# Sets <out> to what is wrong below <root>.
function(find_omissions root out)
  set(wrong "")
  file(GLOB_RECURSE definitions RELATIVE "${root}" "${root}/belay/*.ipp")
  list(FILTER definitions EXCLUDE REGEX "^belay/backend/mpi/")
  file(STRINGS "${root}/${source_hpp}" text REGEX "^#include \".*\\.ipp\"|^#if .*BELAY_SOURCE_PART == ")
  set(lines "")
  set(part "")
  foreach(line IN LISTS text)
    if(line MATCHES "^#include \"(.*)\"")
      list(APPEND lines "${CMAKE_MATCH_1}")
      if(part STRGREATER "${CMAKE_MATCH_1}")
        list(APPEND wrong "the lines of a part of ${source_hpp} are not sorted: ${CMAKE_MATCH_1}")
      endif()
      set(part "${CMAKE_MATCH_1}")
    else()
      set(part "")
    endif()
  endforeach()
  foreach(name IN LISTS definitions)
    string(REGEX REPLACE "ipp$" "hpp" header "${root}/${name}")
    file(READ "${root}/${name}" text)
    if(text MATCHES "\ntemplate <" AND NOT text MATCHES "BELAY_DECL")
      file(READ "${header}" text)
      if(NOT text MATCHES "\n#include \"${name}\"")
        list(APPEND wrong "${name} has templates alone, and its header does not include it")
      endif()
      continue()
    endif()
    if(NOT name IN_LIST lines)
      list(APPEND wrong "${source_hpp} does not include ${name}")
    endif()
    get_filename_component(folder "${name}" DIRECTORY)
    file(GLOB beside "${root}/${folder}/*.hpp")
    set(included no)
    foreach(each IN LISTS beside)
      file(READ "${each}" text)
      if(text MATCHES "\n#if !defined\\(BELAY_SEPARATE_COMPILATION\\)\n(#include [^\n]*\n)*#include \"${name}\"" OR
         (each STREQUAL header AND text MATCHES "\n#if defined\\(BELAY_SEPARATE_COMPILATION\\)\nextern template "))
        set(included yes)
      endif()
    endforeach()
    if(NOT included)
      list(APPEND wrong "no header beside ${name} includes it where BELAY_SEPARATE_COMPILATION is not defined")
    endif()
  endforeach()
  set(${out} "${wrong}" PARENT_SCOPE)
endfunction()

find_omissions("${root}" wrong)
if(wrong)
  list(JOIN wrong "\n  " text)
  message(SEND_ERROR "${text}")
endif()
# The test must be able to fail.
set(planted "${work_dir}/planted")
file(WRITE "${planted}/${source_hpp}" "#include \"belay/core/b.ipp\"\n#include \"belay/core/a.ipp\"\n")
file(WRITE "${planted}/belay/core/lost.ipp" "\ntemplate <class T>\nvoid lost() {}\n")
file(WRITE "${planted}/belay/core/lost.hpp" "template <class T>\nvoid lost();\n")
foreach(name a b forgotten)
  file(WRITE "${planted}/belay/core/${name}.ipp" "")
  file(WRITE "${planted}/belay/core/${name}.hpp" "\n#if !defined(BELAY_SEPARATE_COMPILATION)\n#include \"belay/core/${name}.ipp\"\n#endif\n")
endforeach()
file(WRITE "${planted}/belay/core/a.hpp" "#include \"belay/core/a.ipp\"\n")
find_omissions("${planted}" wrong)
list(LENGTH wrong count)
if(NOT count EQUAL 4)
  message(SEND_ERROR "4 omissions were planted, ${count} were found: ${wrong}")
endif()

# The CMake functions compile all parts.
foreach(core IN ITEMS "core ${source_hpp}" "cuda belay/cuda_source.cuh")
  separate_arguments(core)
  list(GET core 1 header)
  file(STRINGS "${root}/${header}" parts REGEX "BELAY_SOURCE_PART == ")
  list(LENGTH parts count)
  list(GET core 0 name)
  file(STRINGS "${source_dir}/cmake/belay_${name}.cmake" compiled REGEX "${header} ${count} ")
  if(NOT compiled)
    message(SEND_ERROR "${header} has ${count} parts, belay_${name}.cmake compiles another number of them")
  endif()
endforeach()

set(separate -DBELAY_SEPARATE_COMPILATION -DBELAY_CHECKS=1 -c)
file(WRITE "${work_dir}/first.cpp" "#include \"belay/backend/host.hpp\"
int other();
int main() {
  belay::host::world(2).run([](belay::host::rank& self) { belay::barrier(self.world()); });
  return other();
}
")
file(WRITE "${work_dir}/second.cpp" "#include \"belay/backend/host.hpp\"
#include \"belay/backend/host/processes.hpp\"
#include \"belay/belay.hpp\"
int other();
int other() {
  int failed = 0;
  for (const int sum : belay::host::world(2).run([](belay::host::rank& self) {
         int one[] = {1};
         belay::all_reduce(self.world(), one, belay::sum);
         return one[0];
       }))
    failed += sum != 2 ? 1 : 0;
  return failed;
}
")
foreach(name first second)
  compile(${compiler} "${work_dir}/${name}.cpp" ${separate} -o "${work_dir}/${name}.o")
endforeach()
# A package's test has it compiled too.
file(WRITE "${work_dir}/core_in_one.cpp" "#include \"${source_hpp}\"\n")
set(ENV{BELAY_TEST_CORES} "${cores}")
set(once "${test_dir}/../consume/core_once.sh" ${${compiler}})
compile(once "${work_dir}/core_in_one.cpp" ${separate} -fPIC -pthread -o "${work_dir}/source.o")
compile(${compiler} "${source_dir}/examples/00_hello.cpp" ${separate} -o "${work_dir}/hello.o")
find_program(NM NAMES nm)
if(NM)
  execute_process(COMMAND ${NM} -C --defined-only "${work_dir}/hello.o" OUTPUT_VARIABLE symbols)
  foreach(name gradient_buckets parameter_gathers offloaded_state launch_rank)
    if(symbols MATCHES " (void )?belay::v0_checks1::${name}<[^\n]*")
      message(SEND_ERROR "a trainer on ranks of the host compiles what the core has: ${CMAKE_MATCH_0}")
    endif()
  endforeach()
endif()
list(GET ${compiler} 0 linker)
function(link out)
  list(TRANSFORM ARGN PREPEND "${work_dir}/")
  execute_process(COMMAND ${linker} ${ARGN} -pthread -o "${work_dir}/separate"
    RESULT_VARIABLE failed ERROR_VARIABLE diagnostics)
  set(${out} ${failed} PARENT_SCOPE)
  set(diagnostics "${diagnostics}" PARENT_SCOPE)
endfunction()
link(failed first.o second.o source.o)
if(failed)
  message(SEND_ERROR "declarations and source.hpp do not link:\n${diagnostics}")
else()
  execute_process(COMMAND "${work_dir}/separate" RESULT_VARIABLE failed)
  if(failed)
    message(SEND_ERROR "the separately compiled program returned ${failed}")
  endif()
endif()
link(failed hello.o source.o)
if(failed)
  message(SEND_ERROR "a trainer and source.hpp do not link:\n${diagnostics}")
endif()
link(failed first.o second.o)
if(NOT failed)
  message(SEND_ERROR "without source.hpp the program links too: headers define what they should declare")
endif()

# Another level of checking is another library.
compile(${compiler} "${work_dir}/first.cpp" ${separate} -UBELAY_CHECKS -DBELAY_CHECKS=2 -o "${work_dir}/other_level.o")
link(failed other_level.o second.o source.o)
if(NOT failed OR NOT diagnostics MATCHES "v0_checks2::no_core_of_the_same_BELAY_CHECKS_is_linked")
  message(SEND_ERROR "a unit of another level of checking links with source.hpp:\n${diagnostics}")
endif()

# Without the macro the header says what to do.
execute_process(COMMAND ${${compiler}} -std=c++20 "-I${root}" -E "${work_dir}/core_in_one.cpp"
  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_VARIABLE diagnostics)
if(NOT failed OR NOT diagnostics MATCHES "is for programs that are compiled with -DBELAY_SEPARATE_COMPILATION: define it for every source")
  message(SEND_ERROR "source.hpp without BELAY_SEPARATE_COMPILATION says:\n${diagnostics}")
endif()
