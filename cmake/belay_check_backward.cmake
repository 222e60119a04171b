# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# belay_check_backward(<target>...)
#
# g++ and nvcc cannot see a handle that nobody discharged; Clang can. For a target that another compiler builds,
# this function lets Clang read the target's C++ and CUDA sources (no code is made) whenever they or a header they
# include changed, before they are compiled. A backward that is missing fails the build, with Clang's sentence.
#
# - Call it in the folder that makes the target, after its last source; include folders and definitions may follow.
# - Sources that Clang compiles anyway are left alone: the flags of belay::belay do the same there.
# - Where no Clang >= 16 is found the configure step says so in one line; where Clang cannot parse a source, the
#   build says so in one line. In both cases the ledger of checked builds remains.
# - BELAY_CLANG names another Clang.
include_guard(GLOBAL)

set(belay_check_backward_script "${CMAKE_CURRENT_LIST_DIR}/belay_check_backward_run.cmake" CACHE INTERNAL "")

function(belay_check_backward)
  foreach(target IN LISTS ARGN)
    if(NOT TARGET ${target})
      message(FATAL_ERROR "belay_check_backward: '${target}' is not a target")
    endif()
    set(folder "${CMAKE_CURRENT_BINARY_DIR}/belay_check_backward/${target}")
    # Lists that depend on the language can only be asked for in a generated file; Clang reads it as a
    # response file.
    set(includes "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
    set(definitions "$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>")
    set(options "$<FILTER:$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>,INCLUDE,^-[DUI]>")
    belay_check_backward_flags(flags)
    file(GENERATE OUTPUT "${folder}/$<COMPILE_LANGUAGE>_$<CONFIG>.rsp" CONTENT
      "$<$<BOOL:${includes}>:\"-I$<JOIN:$<REMOVE_DUPLICATES:${includes}>,\"\n\"-I>\"\n>$<$<BOOL:${definitions}>:'-D$<JOIN:${definitions},'\n'-D>'\n>$<$<BOOL:${options}>:'$<JOIN:${options},'\n'>'\n>${flags}"
      TARGET ${target})  # last: elsewhere it ends CMake 3.25
    belay_check_backward_add(${target})
  endforeach()
endfunction()

# Sets <out> to what the flags of the folder and the configuration define and include, a line each.
function(belay_check_backward_flags out)
  set(lines "")
  foreach(config "" DEBUG RELEASE RELWITHDEBINFO MINSIZEREL)
    if(config STREQUAL "")
      separate_arguments(given UNIX_COMMAND "${CMAKE_CXX_FLAGS}")
    else()
      separate_arguments(given UNIX_COMMAND "${CMAKE_CXX_FLAGS_${config}}")
    endif()
    list(FILTER given INCLUDE REGEX "^-[DUI]")
    foreach(flag IN LISTS given)
      string(REPLACE ">" "$<ANGLE-R>" flag "${flag}")
      if(config STREQUAL "")
        string(APPEND lines "'${flag}'\n")
      else()
        string(APPEND lines "$<$<CONFIG:${config}>:'${flag}'\n>")
      endif()
    endforeach()
  endforeach()
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()

# Sets <out> to a Clang that has the analysis and accepts C++20 libraries, or to NOTFOUND.
function(belay_find_clang out)
  if(NOT DEFINED BELAY_CLANG)
    set(found NOTFOUND)
    foreach(name clang++-19 clang++-20 clang++-21 clang++-22 clang++-18 clang++-17 clang++-16 clang++)
      find_program(candidate NAMES ${name} NO_CACHE)
      if(candidate)
        execute_process(COMMAND ${candidate} -dumpversion OUTPUT_VARIABLE version ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
        if(version VERSION_GREATER_EQUAL 16)
          set(found ${candidate})
          break()
        endif()
      endif()
      unset(candidate)
    endforeach()
    if(NOT found)
      message(STATUS "belay_check_backward: no Clang >= 16 found; missed backwards are left to the ledger")
    endif()
    # A Clang that is installed later is found by the next configure step.
    if(found)
      set(BELAY_CLANG ${found} CACHE FILEPATH "Clang that checks for missed backwards")
    endif()
  else()
    find_program(found NAMES "${BELAY_CLANG}" NO_CACHE)
    if(NOT found)
      set(found NOTFOUND)
      message(STATUS "belay_check_backward: BELAY_CLANG=${BELAY_CLANG} is no program; missed backwards are left to the ledger")
    endif()
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# The flags of the recipe with which Clang reads .cu files: new CUDA toolkits miss a header that Clang includes.
function(belay_check_backward_cuda_flags out)
  set(toolkit "${CUDAToolkit_ROOT}")
  if(CMAKE_CUDA_COMPILER)
    file(REAL_PATH "${CMAKE_CUDA_COMPILER}" nvcc)
    cmake_path(GET nvcc PARENT_PATH toolkit)
    cmake_path(GET toolkit PARENT_PATH toolkit)
  endif()
  set(stub "${CMAKE_BINARY_DIR}/belay_check_backward/cuda_stub")
  if(NOT EXISTS "${stub}/texture_fetch_functions.h")
    file(WRITE "${stub}/texture_fetch_functions.h" "// Clang includes this header; toolkits since CUDA 13 do not have it.\n")
    file(WRITE "${stub}/as_nvcc.h" "// Clang defines it empty, and NCCL's headers ask for its value.\n#undef __CUDACC__\n#define __CUDACC__ 1\n")
  endif()
  set(flags -x cuda --cuda-host-only -nocudalib -Wno-unknown-cuda-version "--cuda-path=${toolkit}" -isystem "${stub}" -include "${stub}/as_nvcc.h")
  foreach(folder "${toolkit}/include/cccl" "${toolkit}/targets/x86_64-linux/include/cccl")
    if(IS_DIRECTORY "${folder}")
      list(APPEND flags -isystem "${folder}")
      break()
    endif()
  endforeach()
  set(${out} "${flags}" PARENT_SCOPE)
endfunction()

function(belay_check_backward_add target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(source_dir ${target} SOURCE_DIR)
  get_target_property(standard ${target} CXX_STANDARD)
  if(NOT standard OR standard LESS 20)
    set(standard 20)
  endif()

  set(todo "")
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.(cpp|cc|cxx|C|c\\+\\+)$")
      set(compiler "${CMAKE_CXX_COMPILER_ID}")
    elseif(source MATCHES "\\.cu$")
      set(compiler "${CMAKE_CUDA_COMPILER_ID}")
    else()
      continue()
    endif()
    if(NOT compiler MATCHES "Clang")
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${source_dir}" NORMALIZE)
      list(APPEND todo "${source}")
    endif()
  endforeach()
  if(todo STREQUAL "")
    return()
  endif()
  belay_find_clang(clang)
  if(NOT clang)
    return()
  endif()

  set(folder "${CMAKE_CURRENT_BINARY_DIR}/belay_check_backward/${target}")
  set(stamps "")
  foreach(source IN LISTS todo)
    set(flags "")
    set(language CXX)
    if(source MATCHES "\\.cu$")
      belay_check_backward_cuda_flags(flags)
      set(language CUDA)
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY "${source_dir}" OUTPUT_VARIABLE name)
    string(REGEX REPLACE "[^A-Za-z0-9_.]" "_" file "${name}")
    set(stamp "${folder}/${file}.checked")
    set(response "${folder}/${language}_$<CONFIG>.rsp")
    add_custom_command(OUTPUT "${stamp}"
      COMMAND ${CMAKE_COMMAND} "-Dcompiler=${clang}" "-Dstandard=${standard}" "-Dflags=${flags}" "-Dresponse=${response}"
        "-Dsource=${source}" "-Dname=${name}" "-Dstamp=${stamp}" -P "${belay_check_backward_script}"
      DEPENDS "${source}" "${response}" "${belay_check_backward_script}"
      DEPFILE "${stamp}.d"
      COMMENT "Looking for missed backwards in ${name}"
      VERBATIM)
    list(APPEND stamps "${stamp}")
  endforeach()

  add_custom_target(${target}_check_backward DEPENDS ${stamps})
  get_target_property(before ${target} MANUALLY_ADDED_DEPENDENCIES)
  if(before)
    add_dependencies(${target}_check_backward ${before})
  endif()
  add_dependencies(${target} ${target}_check_backward)
endfunction()
