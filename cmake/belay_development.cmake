# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# What tests, examples and benchmarks share and a consumer never sees: warnings, -march=native, BLAS, liburing.

add_library(belay_warnings INTERFACE)
# A compiler that this project has not met may warn of something new; what it warns of it still builds.
option(BELAY_WERROR "Warnings are errors" ON)
set(belay_warning_flags -Wall -Wextra -Wconversion -Wshadow)
set(belay_device_warning_flags -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-parentheses,-Wno-restrict)
if(BELAY_WERROR)
  list(APPEND belay_warning_flags -Werror)
  list(APPEND belay_device_warning_flags -Werror=all-warnings)
endif()
target_compile_options(belay_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${belay_warning_flags};-Wpedantic>")
# GCC 12 sees overlapping copies in its own std::string at -O3 (its bug 105651).
target_compile_options(belay_warnings INTERFACE
  "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>")
# nvcc's own output does not pass -Wpedantic, -Wconversion or -Wparentheses; its front end has a switch of its own. Its
# host compiler may be that GCC 12.
target_compile_options(belay_warnings INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:${belay_device_warning_flags}>")
if(BELAY_NATIVE)
  target_compile_options(belay_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-march=native>")
  # GCC 12 before 12.3 writes wrong constants with 64-byte moves: std::vector{0.5, 0.5, 0, 0} becomes four halves.
  target_compile_options(belay_warnings INTERFACE
    "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,12.3>>:-mmove-max=128;-mstore-max=128>")
endif()

# What trains for real is too slow unoptimised; everything else of a Debug build compiles in half the time that way.
add_library(belay_optimized INTERFACE)
target_compile_options(belay_optimized INTERFACE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Debug>>:-O1>")

# What the layers of the examples multiply matrices with. Compiled for a machine with AVX the library's blocked loop is
# the faster (docs/explanation/cost.md); elsewhere it is OpenBLAS, where it is found.
add_library(belay_example_blas INTERFACE)
set(BELAY_BLAS "AUTO" CACHE STRING "OpenBLAS in examples, tests and benchmarks: ON where it is found, OFF, or AUTO")
set_property(CACHE BELAY_BLAS PROPERTY STRINGS AUTO ON OFF)
set(belay_use_blas ${BELAY_BLAS})
if(BELAY_BLAS STREQUAL "AUTO")
  set(belay_use_blas ON)
  if(BELAY_NATIVE)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -march=native)
    check_cxx_source_compiles("#ifndef __AVX__\n#error\n#endif\nint main() {}" BELAY_COMPILED_FOR_AVX)
    unset(CMAKE_REQUIRED_FLAGS)
    if(BELAY_COMPILED_FOR_AVX)
      set(belay_use_blas OFF)
    endif()
  endif()
endif()
if(belay_use_blas)
  find_path(BELAY_CBLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu)
  find_library(BELAY_OPENBLAS NAMES openblas)
endif()
if(belay_use_blas AND BELAY_CBLAS_INCLUDE AND BELAY_OPENBLAS)
  target_include_directories(belay_example_blas SYSTEM INTERFACE ${BELAY_CBLAS_INCLUDE})
  target_link_libraries(belay_example_blas INTERFACE ${BELAY_OPENBLAS})
  target_compile_definitions(belay_example_blas INTERFACE BELAY_HAS_CBLAS=1)
else()
  message(STATUS "OpenBLAS: not used; the examples multiply matrices with a blocked loop")
endif()

# What they link: header-only as most users have it, or with the host backend compiled once for all of them.
option(BELAY_SEPARATE "Tests, examples and benchmarks link what is compiled once instead of compiling all of it in each" ON)
# Programs that include belay/report_page.hpp, or a header behind it, link belay_linked_page.
set(belay_linked belay::header_only)
set(belay_linked_page belay::header_only)
if(BELAY_SEPARATE)
  set(belay_linked belay::belay)
  set(belay_linked_page belay::report_page)
endif()
target_link_libraries(belay_core PRIVATE belay_warnings)
# Trainers link its optimizers and stores. g++ takes as long for it as without; Clang with a sanitizer more than twice as long.
target_compile_options(belay_core PRIVATE "$<$<AND:$<CONFIG:Debug>,$<CXX_COMPILER_ID:GNU>>:-O1>")

# Compiled at once instead of side by side it takes half the seconds of a core.
option(BELAY_CORE_WHOLE "The core in one compilation" OFF)
if(BELAY_CORE_WHOLE)
  file(CONFIGURE OUTPUT belay_core_whole.cpp CONTENT "#include \"belay/source.hpp\"\n" @ONLY)
  set_target_properties(belay_core PROPERTIES SOURCES ${CMAKE_CURRENT_BINARY_DIR}/belay_core_whole.cpp)
endif()

# Editors know how to read the files that no source includes alone: each is in compile_commands.json, as a header, since
# that of its name may include it again. Nothing is made of them.
file(GLOB_RECURSE belay_parts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/*.ipp)
set_source_files_properties(${belay_parts} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++-header;-fsyntax-only")
add_library(belay_parts OBJECT EXCLUDE_FROM_ALL ${belay_parts})
target_link_libraries(belay_parts PRIVATE belay::header_only $<TARGET_NAME_IF_EXISTS:MPI::MPI_CXX>)
target_compile_options(belay_parts PRIVATE -Wall -Wextra -Wconversion -Wshadow)
target_compile_definitions(belay_parts PRIVATE BELAY_SEPARATE_COMPILATION)
set_target_properties(belay_parts PROPERTIES EXPORT_COMPILE_COMMANDS ON)

# io_uring, which a file tier uses where it is found and the kernel allows it.
add_library(belay_liburing INTERFACE)
find_path(BELAY_LIBURING_INCLUDE NAMES liburing.h)
find_library(BELAY_LIBURING NAMES uring)
if(BELAY_LIBURING_INCLUDE AND BELAY_LIBURING)
  target_include_directories(belay_liburing SYSTEM INTERFACE ${BELAY_LIBURING_INCLUDE})
  target_link_libraries(belay_liburing INTERFACE ${BELAY_LIBURING})
  target_compile_definitions(belay_liburing INTERFACE BELAY_HAS_LIBURING=1)
else()
  message(STATUS "liburing: not found; file tiers use a thread")
endif()
